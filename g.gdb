set breakpoint pending on
set pagination off
set confirm off
rbreak store_and_take<
rbreak moments_of_rows<
run
info symbol $pc
