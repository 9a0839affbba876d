"""`torch.compile(model, backend="kfusion")`: nothing of it is imported before torch asks for it."""
