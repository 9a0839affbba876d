#include "python/fuse/table.hpp"

#include <algorithm>

#include "python/fuse/weak.hpp"
#include "python/gil.hpp"

namespace kfusion::fuse {
namespace {

namespace table_detail {

constexpr std::size_t kMostSlots = 512;

/// Nobody waits for the table with the GIL in hand: its owner may want that (comparing and allocating can run Python).
class Lock {
 public:
  explicit Lock(std::mutex& mutex) : mutex_(mutex) {
    if (mutex_.try_lock()) return;
    const ReleaseGil unlocked;
    mutex_.lock();
  }
  ~Lock() { mutex_.unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  std::mutex& mutex_;
};

/// Both of one type whose comparison runs no user's code, or identical.
bool equal(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  const int same = PyObject_RichCompareBool(a, b, Py_EQ);
  if (same < 0) PyErr_Clear();
  return same == 1;
}

std::vector<int> without_added(const std::vector<int>& numbers, const Signature& s) {
  std::vector<int> rest;
  std::ranges::copy_if(numbers, std::back_inserter(rest), [&](int i) { return !std::ranges::count(s.added(), i); });
  return rest;
}

}  // namespace table_detail
}  // namespace

Key::Key(const Signature& s, const Environments& environments)
    : words_(s.words().begin(), s.words().end()), environments_(environments.begin(), environments.end()) {
  for (const Named& n : s.objects()) {
    if (n.by_value)
      objects_.push_back({py::reinterpret_borrow<py::object>(n.object), Remembered(nullptr)});
    else
      objects_.push_back({{}, Remembered(n.object)});
  }
}

bool Key::matches(const Signature& s) const {
  if (!std::ranges::equal(words_, s.words()) || objects_.size() != s.objects().size()) return false;
  return std::ranges::equal(objects_, s.objects(), [](const Held& h, const Named& n) {
    if (n.by_value != static_cast<bool>(h.value)) return false;
    return n.by_value ? table_detail::equal(h.value.ptr(), n.object) : h.remembered.is(n.object);
  });
}

bool Key::is_dead() const {
  return std::ranges::any_of(environments_, [](const auto& e) { return e.expired(); }) ||
         std::ranges::any_of(objects_, [](const Held& h) { return h.remembered.is_dead(); });
}

void Key::append_owned(std::vector<PyObject*>& to) const {
  for (const Held& h : objects_) to.push_back(h.value ? h.value.ptr() : h.remembered.held());
}

std::vector<PyObject*> Table::Slot::held() const {
  std::vector<PyObject*> objects;
  key.append_owned(objects);
  if (entry && entry.use_count() == 1) {  // else a call holds it
    if (entry->fill) objects.push_back(entry->fill.ptr());
    if (entry->alike) objects.push_back(entry->alike.ptr());
    for (const py::object& function : entry->calls) objects.push_back(function.ptr());
    for (const Source& source : entry->sources)
      if (source.held) objects.push_back(source.held.ptr());
    for (const Watched& watched : entry->watched) objects.push_back(watched.held());
    entry->scalars.append_owned(objects);
  }
  return objects;
}

Table::Slot* Table::look_up(const Signature& s) {
  if (!last_ || !last_->key.matches(s)) last_ = search(s);
  return last_;
}

Table::Slot* Table::search(const Signature& s) {
  const auto [first, last] = slots_.equal_range(s.hash());
  const auto found = std::find_if(first, last, [&](const auto& item) { return item.second.key.matches(s); });
  return found == last ? nullptr : &found->second;
}

/// The slot found last, if `s` becomes its signature by the values that it wants: most calls need no other look.
Table::Slot* Table::guess(Signature& s) {
  if (!last_ || !last_->entry || last_->numbers.empty() || !s.added().empty()) return nullptr;
  if (!std::ranges::all_of(last_->numbers, [&](int number) { return s.has(number); })) return nullptr;
  s.add_values(last_->numbers);
  if (last_->key.matches(s)) return last_;
  s.remove_values(last_->numbers.size());
  return nullptr;
}

/// Follows slots that want the values of numbers.
Table::Slot* Table::descend(Signature& s) {
  Slot* slot = guess(s);
  if (!slot) slot = look_up(s);
  for (; slot; slot = look_up(s)) {
    slot->last_use = ++uses_;
    if (slot->entry) break;
    s.add_values(slot->numbers);
  }
  return slot;
}

std::shared_ptr<const Entry> Table::find(Signature& s) {
  const table_detail::Lock lock(mutex_);
  const Slot* slot = descend(s);
  return slot ? slot->entry : nullptr;
}

void Table::insert(Signature& s, const std::vector<int>& numbers, std::shared_ptr<const Entry> entry,
                   const Environments& environments) {
  std::vector<Slot> removed;  // their objects die without the lock
  {
    const table_detail::Lock lock(mutex_);
    if (Slot* slot = descend(s)) {
      std::swap(slot->entry, entry);
      return;
    }
    remove_some(removed);
  }
  // Keys are made without the lock: allocating Python objects can run anything.
  std::vector<std::pair<std::uint64_t, Slot>> fresh;
  if (auto rest = table_detail::without_added(numbers, s); !rest.empty()) {
    fresh.emplace_back(s.hash(), Slot{Key(s, environments), nullptr, rest});
    s.add_values(rest);
  }
  fresh.emplace_back(s.hash(), Slot{Key(s, environments), std::move(entry), {s.added().begin(), s.added().end()}});
  const table_detail::Lock lock(mutex_);
  for (auto& [hash, slot] : fresh) {
    slot.last_use = ++uses_;
    slots_.emplace(hash, std::move(slot));
  }
}

/// Makes room: dead keys go, and of a full table the half that was not used for longest.
void Table::remove_some(std::vector<Slot>& removed) {
  last_ = nullptr;
  std::uint64_t oldest = 0;
  if (slots_.size() >= table_detail::kMostSlots) {
    std::vector<std::uint64_t> uses;
    for (const auto& [hash, slot] : slots_) uses.push_back(slot.last_use);
    std::ranges::nth_element(uses, uses.begin() + static_cast<std::ptrdiff_t>(uses.size() / 2));
    oldest = uses[uses.size() / 2];
  }
  for (auto i = slots_.begin(); i != slots_.end();) {
    if (i->second.last_use >= oldest && !i->second.key.is_dead()) {
      ++i;
      continue;
    }
    removed.push_back(std::move(i->second));
    i = slots_.erase(i);
  }
}

void Table::clear() {
  Slots old;
  const table_detail::Lock lock(mutex_);
  slots_.swap(old);
  last_ = nullptr;
}

std::size_t Table::size() const {
  const table_detail::Lock lock(mutex_);
  return static_cast<std::size_t>(std::ranges::count_if(slots_, [](const auto& item) { return !!item.second.entry; }));
}

}  // namespace kfusion::fuse
