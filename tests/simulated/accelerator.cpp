// A simulated accelerator for torch, as its device type PrivateUse1. It shows what an asynchronous device does to a
// program that orders its work wrongly:
//
// - each stream is a thread, which executes copies and kernels late, for a random time, and copies in pieces
// - events are markers in a stream; `block` makes a stream wait for one
// - device memory cannot be touched by the host: its pages are inaccessible, and the streams use a second mapping
// - freed memory is given out again in the order of its stream, as by torch's allocator for CUDA, and is overwritten
//   with 0xDD as soon as that is allowed; `record_stream` postpones this
// - pinned memory is torch's own `CachingHostAllocator`; a copy from other memory reads it before the call returns
// - host memory can be registered, as with cudaHostRegister, with its errors
//
// Python reaches it through the functions at the end (simulator.py).

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;
using Work = std::function<void()>;
constexpr auto SIMULATED = c10::DeviceType::PrivateUse1;
constexpr int MAX_DEVICES = 4;
constexpr int STREAMS = 32;                     // as for CUDA, new streams come from a pool, in turn
constexpr size_t SPACE = (size_t)4 << 30;       // addresses per device
constexpr size_t BLOCK = 4096;
constexpr int OK = 0, NO_MEMORY = 2, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713;

std::atomic<int> devices{0};
std::atomic<long> copy_us{0}, kernel_us{0};
std::atomic<size_t> device_limit{SPACE}, register_limit{SPACE};
std::atomic<bool> capturing{false};
std::atomic<long> pinned_copies{0}, staged_copies{0}, blocking_copies{0}, unregistered_reads{0}, live_events{0};
std::atomic<long> registrations{0}, wrong_device{0}, calls_in_capture{0}, created_streams{0};

void pass(long us) {
  if (us <= 0) return;
  thread_local std::mt19937 random(std::random_device{}());
  std::this_thread::sleep_for(std::chrono::microseconds(std::uniform_int_distribution<long>(0, 2 * us)(random)));
}

// ---- streams and events

class Marker {
 public:
  void set() {
    std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
    at_ = Clock::now();
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
  }
  bool done() {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_;
  }
  Clock::time_point at() {
    std::lock_guard<std::mutex> lock(mutex_);
    return at_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Clock::time_point at_;
};
using MarkerPtr = std::shared_ptr<Marker>;

class StreamThread {
 public:
  StreamThread() { std::thread([this] { run(); }).detach(); }
  void put(Work work) {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.notify_all();
  }
  MarkerPtr mark() {
    auto marker = std::make_shared<Marker>();
    put([marker] { marker->set(); });
    return marker;
  }
  bool idle() {
    std::lock_guard<std::mutex> lock(mutex_);
    return queue_.empty() && !busy_;
  }

 private:
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !queue_.empty(); });
      Work work = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
      busy_ = false;
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  bool busy_ = false;
};

struct Device {
  std::mutex mutex;
  std::map<int64_t, StreamThread*> streams;
  int next_stream = 0;
};
Device& device(int index) {
  static auto* all = new std::array<Device, MAX_DEVICES>();  // never destroyed: the threads of streams outlive main
  return all->at(index);
}
StreamThread& stream_of(int index, int64_t id) {
  static const pid_t owner = getpid();
  TORCH_CHECK(owner == getpid(), "the simulated accelerator was used in a forked process");
  auto& d = device(index);
  std::lock_guard<std::mutex> lock(d.mutex);
  auto& stream = d.streams[id];
  if (!stream) stream = new StreamThread();
  return *stream;
}
StreamThread& stream_of(const c10::Stream& s) { return stream_of(s.device_index(), s.id()); }

thread_local int current_device = 0;
thread_local std::array<int64_t, MAX_DEVICES> current_streams{};
c10::Stream make_stream(int index, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(SIMULATED, (c10::DeviceIndex)index), id);
}
c10::Stream current_stream(int index) { return make_stream(index, current_streams.at(index)); }
int index_of(c10::Device d) { return d.index() < 0 ? current_device : d.index(); }

struct Event {
  MarkerPtr marker;
  bool timing;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  c10::DeviceType type() const override { return SIMULATED; }
  c10::Device exchangeDevice(c10::Device d) const override {
    c10::Device old = getDevice();
    current_device = index_of(d);
    return old;
  }
  c10::Device getDevice() const override { return {SIMULATED, (c10::DeviceIndex)current_device}; }
  void setDevice(c10::Device d) const override { current_device = index_of(d); }
  void uncheckedSetDevice(c10::Device d) const noexcept override { current_device = index_of(d); }
  c10::Stream getStream(c10::Device d) const noexcept override { return current_stream(index_of(d)); }
  c10::Stream getDefaultStream(c10::Device d) const override { return make_stream(index_of(d), 0); }
  c10::Stream getNewStream(c10::Device d, int) const override {
    auto& owner = device(index_of(d));
    std::lock_guard<std::mutex> lock(owner.mutex);
    ++created_streams;
    return make_stream(index_of(d), 1 + owner.next_stream++ % STREAMS);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return getNewStream(d, 0); }
  c10::Stream exchangeStream(c10::Stream s) const noexcept override {
    auto old = current_stream(s.device_index());
    current_streams.at(s.device_index()) = s.id();
    return old;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return (c10::DeviceIndex)devices.load(); }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    if (!event) return;
    --live_events;
    delete (Event*)event;
  }
  void record(void** event, const c10::Stream& s, c10::DeviceIndex, c10::EventFlag flag) const override {
    if (!*event) {
      ++live_events;
      *event = new Event{nullptr, flag == c10::EventFlag::BACKEND_DEFAULT};
    }
    ((Event*)*event)->marker = stream_of(s).mark();
  }
  void block(void* event, const c10::Stream& s) const override {
    if (!event || !((Event*)event)->marker) return;
    stream_of(s).put([marker = ((Event*)event)->marker] { marker->wait(); });
  }
  bool queryEvent(void* event) const override {
    return !event || !((Event*)event)->marker || ((Event*)event)->marker->done();
  }
  void synchronizeEvent(void* event) const override {
    if (event && ((Event*)event)->marker) ((Event*)event)->marker->wait();
  }
  bool queryStream(const c10::Stream& s) const override { return stream_of(s).idle(); }
  void synchronizeStream(const c10::Stream& s) const override { stream_of(s).mark()->wait(); }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    auto& d = device(index < 0 ? current_device : index);
    std::vector<StreamThread*> streams;
    {
      std::lock_guard<std::mutex> lock(d.mutex);
      for (auto& [id, stream] : d.streams) streams.push_back(stream);
    }
    for (auto* stream : streams) stream->mark()->wait();
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& s) const override;
  double elapsedTime(void* a, void* b, c10::DeviceIndex) const override {
    TORCH_CHECK(a && b && ((Event*)a)->timing && ((Event*)b)->timing, "both events must be recorded with timing");
    auto &from = *((Event*)a)->marker, &to = *((Event*)b)->marker;
    TORCH_CHECK(from.done() && to.done(), "the events are not complete");
    return (float)std::chrono::duration<double, std::milli>(to.at() - from.at()).count();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// ---- memory of the device

struct Block {
  int device;
  int64_t stream;
  char* address;
  size_t size;
  std::vector<int64_t> used_by;     // streams of `record_stream`
  std::vector<MarkerPtr> pending;   // their work at the time when the block was freed
};

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  at::DataPtr allocate(size_t nbytes) override {
    int index = current_device;
    c10::Device where(SIMULATED, (c10::DeviceIndex)index);
    if (!nbytes) return {nullptr, nullptr, &DeviceMemory::release, where};
    size_t size = (nbytes + BLOCK - 1) / BLOCK * BLOCK;
    std::lock_guard<std::mutex> lock(mutex_);
    reuse_pending();
    auto& free = free_[{index, current_streams.at(index), size}];
    Block* block = nullptr;
    if (!free.empty()) {
      block = free.back();
      free.pop_back();
    } else {
      if (reserved_[index] + size > device_limit) drop_free(index);
      auto& space = space_of(index);
      if (reserved_[index] + size > device_limit || space.top + size > SPACE)
        TORCH_CHECK_WITH(OutOfMemoryError, false, "simulated: tried to allocate ", size, " bytes");
      block = new Block{index, current_streams.at(index), space.host + space.top, size, {}, {}};
      space.top += size;
      reserved_[index] += size;
    }
    used_ += size;
    return {block->address, block, &DeviceMemory::release, where};
  }
  char* within_device(const void* address) {  // where the streams see it
    for (auto& space : spaces_)
      if (space.host && address >= space.host && address < space.host + SPACE)
        return space.device + ((char*)address - space.host);
    TORCH_CHECK(false, "not an address of the simulated accelerator");
  }
  int device_of(const void* address) {
    for (int i = 0; i < MAX_DEVICES; ++i)
      if (spaces_[i].host && address >= spaces_[i].host && address < spaces_[i].host + SPACE) return i;
    return -1;
  }
  void recordStream(const c10::DataPtr& memory, c10::Stream s) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto* block = (Block*)memory.get_context();
    if (block && s.id() != block->stream) block->used_by.push_back(s.id());
  }
  static void release(void* context);
  size_t used() { std::lock_guard<std::mutex> lock(mutex_); return used_; }
  size_t reserved() {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t sum = 0;
    for (auto& [index, size] : reserved_) sum += size;
    return sum;
  }
  void forget_free() {  // so that `reserved` counts from here
    std::lock_guard<std::mutex> lock(mutex_);
    reuse_pending();
    for (int i = 0; i < MAX_DEVICES; ++i) drop_free(i);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &DeviceMemory::release; }
  void copy_data(void*, const void*, size_t) const override { TORCH_CHECK(false, "not implemented"); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}

 private:
  struct Space {
    char *host = nullptr, *device = nullptr;
    size_t top = 0;
  };
  Space& space_of(int index) {
    auto& space = spaces_[index];
    if (space.host) return space;
    int fd = memfd_create("simulated", 0);
    TORCH_CHECK(fd >= 0 && !ftruncate(fd, SPACE), "no memory file");
    auto map = [fd](int access) { return (char*)mmap(nullptr, SPACE, access, MAP_SHARED | MAP_NORESERVE, fd, 0); };
    space.device = map(PROT_READ | PROT_WRITE);
    space.host = map(PROT_NONE);
    TORCH_CHECK(space.device != MAP_FAILED && space.host != MAP_FAILED, "the memory cannot be mapped");
    close(fd);
    return space;
  }
  void reuse_pending() {
    for (size_t i = 0; i < pending_.size();) {
      auto* block = pending_[i];
      bool done = std::all_of(block->pending.begin(), block->pending.end(), [](auto& m) { return m->done(); });
      if (!done) {
        ++i;
        continue;
      }
      block->pending.clear();
      reuse(block);
      pending_.erase(pending_.begin() + (long)i);
    }
  }
  void reuse(Block* block) {  // from here on, the next work of its stream may write to it: so it does
    stream_of(block->device, block->stream).put([to = within_device(block->address), n = block->size] {
      memset(to, 0xDD, n);
    });
    free_[{block->device, block->stream, block->size}].push_back(block);
  }
  void drop_free(int index) {  // their addresses are not used again
    for (auto& [key, blocks] : free_) {
      if (std::get<0>(key) != index) continue;
      for (auto* block : blocks) {
        reserved_[index] -= block->size;
        delete block;
      }
      blocks.clear();
    }
  }
  std::mutex mutex_;
  std::array<Space, MAX_DEVICES> spaces_;
  std::map<std::tuple<int, int64_t, size_t>, std::vector<Block*>> free_;
  std::vector<Block*> pending_;
  std::map<int, size_t> reserved_;
  size_t used_ = 0;
};
DeviceMemory& device_memory() {
  static auto* memory = new DeviceMemory();
  return *memory;
}
void DeviceMemory::release(void* context) {
  if (!context) return;
  auto* block = (Block*)context;
  auto& memory = device_memory();
  std::lock_guard<std::mutex> lock(memory.mutex_);
  memory.used_ -= block->size;
  for (auto id : block->used_by) block->pending.push_back(stream_of(block->device, id).mark());
  block->used_by.clear();
  if (block->pending.empty()) memory.reuse(block);
  else memory.pending_.push_back(block);
}
void Guard::recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& s) const {
  device_memory().recordStream(memory, s);
}
const bool has_allocator = (c10::SetAllocator(SIMULATED, &device_memory()), true);

// ---- pinned memory of the host: torch's pool, and what is registered

class Ranges {
 public:
  void add(const void* begin, size_t size) {
    std::lock_guard<std::mutex> lock(mutex_);
    ranges_[(uintptr_t)begin] = size;
    nbytes_ += size;
  }
  bool remove(const void* begin) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = ranges_.find((uintptr_t)begin);
    if (found == ranges_.end()) return false;
    nbytes_ -= found->second;
    ranges_.erase(found);
    return true;
  }
  bool overlaps(const void* begin, size_t size) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto next = ranges_.lower_bound((uintptr_t)begin + size);
    if (next == ranges_.begin()) return false;
    --next;
    return next->first + next->second > (uintptr_t)begin;
  }
  bool contains(const void* address) { return overlaps(address, 1); }
  size_t nbytes() { std::lock_guard<std::mutex> lock(mutex_); return nbytes_; }

 private:
  std::mutex mutex_;
  std::map<uintptr_t, size_t> ranges_;
  size_t nbytes_ = 0;
};
Ranges& pool() { static auto* ranges = new Ranges(); return *ranges; }
Ranges& registered() { static auto* ranges = new Ranges(); return *ranges; }
std::map<uintptr_t, int>& registered_on() { static auto* map = new std::map<uintptr_t, int>(); return *map; }

struct HostStream {  // the allocator needs a type of its own, with a hash
  c10::Stream stream;
  bool operator==(const HostStream& other) const { return stream == other.stream; }
  operator c10::Stream() const { return stream; }
};
}  // namespace
template <>
struct std::hash<HostStream> {
  size_t operator()(const HostStream& s) const { return std::hash<c10::Stream>()(s.stream); }
};
namespace {
struct PinnedMemory : at::CachingHostAllocatorImpl<HostStream, MarkerPtr> {
  void allocate_host_memory(size_t size, void** address) override {
    *address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(*address != MAP_FAILED, "no memory");
    pool().add(*address, size);
  }
  void free_block(at::HostBlock<HostStream>* block) override {
    pool().remove(block->ptr_);
    munmap(block->ptr_, block->size_);
  }
  void record_stream(std::optional<std::vector<MarkerPtr>>& events, HostStream s) override {
    events->push_back(stream_of(s.stream).mark());
  }
  bool query_event(MarkerPtr& event) override { return event->done(); }
  HostStream get_current_stream() const override { return HostStream{current_stream(current_device)}; }
  bool stream_is_capturing(HostStream) const override { return false; }
};
void free_pinned(void* context);
struct PinnedAllocator final : at::CachingHostAllocatorInterface<PinnedMemory, free_pinned> {};
PinnedAllocator& pinned_allocator() { static auto* allocator = new PinnedAllocator(); return *allocator; }
void free_pinned(void* context) { pinned_allocator().free(context); }
at::HostAllocatorRegistry<SIMULATED> register_pinned(&pinned_allocator());

struct Hooks : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return devices > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return (c10::DeviceIndex)devices.load(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { current_device = index; }
  c10::DeviceIndex getCurrentDevice() const override { return (c10::DeviceIndex)current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return (c10::DeviceIndex)std::exchange(current_device, (int)index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  bool isPinnedPtr(const void* address) const override {
    return pool().contains(address) || registered().contains(address);
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  at::Device getDeviceFromPtr(void* address) const override {
    return {SIMULATED, (c10::DeviceIndex)device_memory().device_of(address)};
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static auto generator = at::detail::createCPUGenerator();
    return generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    impl->set_data_ptr_noswap(device_memory().allocate(nbytes));
    impl->set_nbytes(nbytes);
  }
};
const bool has_hooks = (at::RegisterPrivateUse1HooksInterface(new Hooks()), true);

// ---- operators

void copy_slowly(char* to, const char* from, size_t size) {  // in pieces, so that a concurrent writer shows
  long us = copy_us;
  if (us > 0) pass(us);
  size_t piece = us > 0 ? std::max(size / 4, BLOCK) : size;
  for (size_t begin = 0; begin < size; begin += piece) {
    if (begin) pass(us / 8);
    memcpy(to + begin, from + begin, std::min(piece, size - begin));
  }
}

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
      a.is_non_overlapping_and_dense() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

void upload(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (!same_layout(from, to)) {
    TORCH_CHECK(to.is_non_overlapping_and_dense(), "simulated: copies to views with gaps are not implemented");
    auto copy = at::empty_strided(to.sizes(), to.strides(), to.options().device(at::kCPU));
    copy.copy_(from);
    return upload(copy, to, non_blocking);
  }
  auto s = current_stream(to.device().index());
  char* target = device_memory().within_device(to.data_ptr());
  const char* source = (const char*)from.data_ptr();
  size_t size = from.nbytes();
  bool in_place = registered().contains(source);
  if (non_blocking && (in_place || pool().contains(source))) {
    ++pinned_copies;
    stream_of(s).put([=] {
      if (in_place && !registered().contains(source)) ++unregistered_reads;
      copy_slowly(target, source, size);
    });
    pinned_allocator().record_event((void*)source, from.storage().data_ptr().get_context(), s);
  } else if (non_blocking) {
    ++staged_copies;
    auto staged = std::make_shared<std::vector<char>>(source, source + size);
    stream_of(s).put([=] { copy_slowly(target, staged->data(), size); });
  } else {
    ++blocking_copies;
    stream_of(s).put([=] { copy_slowly(target, source, size); });
    stream_of(s).mark()->wait();
  }
}

void download(const at::Tensor& from, const at::Tensor& to) {
  auto& s = stream_of(current_stream(from.device().index()));
  const char* source = device_memory().within_device(from.data_ptr());
  if (same_layout(from, to)) {
    s.put([source, target = (char*)to.data_ptr(), size = to.nbytes()] { copy_slowly(target, source, size); });
    s.mark()->wait();
    return;
  }
  size_t size = from.storage().nbytes() - (size_t)from.storage_offset() * from.element_size();
  auto whole = at::empty({(int64_t)size}, at::kByte);
  s.put([source, target = (char*)whole.data_ptr(), size] { copy_slowly(target, source, size); });
  s.mark()->wait();
  to.copy_(at::from_blob(whole.data_ptr(), from.sizes(), from.strides(), from.options().device(at::kCPU)));
}

void copy_within(const at::Tensor& from, const at::Tensor& to) {
  if (!same_layout(from, to)) return upload(from.cpu(), to, false);
  auto reader = current_stream(from.device().index()), writer = current_stream(to.device().index());
  if (reader != writer) stream_of(reader).put([ready = stream_of(writer).mark()] { ready->wait(); });
  const char* source = device_memory().within_device(from.data_ptr());
  char* target = device_memory().within_device(to.data_ptr());
  stream_of(reader).put([=, size = to.nbytes()] {
    pass(kernel_us);
    memcpy(target, source, size);
  });
  if (reader != writer) stream_of(writer).put([done = stream_of(reader).mark()] { done->wait(); });
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (!from.numel()) return to;
  if (from.is_cpu()) upload(from, to, non_blocking);
  else if (to.is_cpu()) download(from, to);
  else copy_within(from, to);
  return to;
}
const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, size, format);
}
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) resize_(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}
using Type = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using OptionalDevice = std::optional<at::Device>;
constexpr c10::DispatchKeySet KEYS(c10::DispatchKey::PrivateUse1);
at::Tensor empty(c10::IntArrayRef size, Type type, Layout, OptionalDevice where, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(where.value_or(at::Device(SIMULATED, (c10::DeviceIndex)current_device)));
  return at::detail::empty_generic(size, &device_memory(), KEYS, type.value_or(at::kFloat), format);
}
at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, Type type, Layout, OptionalDevice where,
                         std::optional<bool>) {
  c10::DeviceGuard guard(where.value_or(at::Device(SIMULATED, (c10::DeviceIndex)current_device)));
  return at::detail::empty_strided_generic(size, stride, &device_memory(), KEYS, type.value_or(at::kFloat));
}
at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  auto begin = offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt;
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), begin);
}
at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}
at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}
at::Scalar item(const at::Tensor& self) { return self.cpu().item(); }
void record_stream(at::Tensor& self, c10::Stream s) { device_memory().recordStream(self.storage().data_ptr(), s); }
void on_the_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_host>());
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("as_strided", as_strided);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("view", view);
  library.impl("resize_", resize_);
  library.impl("_local_scalar_dense", item);
  library.impl("record_stream", record_stream);
}

struct Read {
  std::vector<char> bytes;
  MarkerPtr done;
};

}  // namespace

extern "C" {

void simulated_devices(int count) { devices = count; }
int simulated_current_device() { return current_device; }
void simulated_set_device(int index) { current_device = index; }
void simulated_speed(long copy, long kernel) { copy_us = copy; kernel_us = kernel; }
void simulated_limits(size_t device, size_t pinned_in_place) {
  device_limit = device;
  register_limit = pinned_in_place;
}
void simulated_capture(bool on) { capturing = on; }
void simulated_forget_free() { device_memory().forget_free(); }

// A kernel that reads memory late. Its result is available when `simulated_result` returns.
void* simulated_read(const void* address, size_t size, int index, int64_t stream) {
  auto* read = new Read();
  auto& s = stream_of(index, stream);
  s.put([read, from = device_memory().within_device(address), size] {
    pass(kernel_us);
    read->bytes.assign(from, from + size);
  });
  read->done = s.mark();
  return read;
}
void simulated_result(void* handle, char* to) {
  auto* read = (Read*)handle;
  read->done->wait();
  memcpy(to, read->bytes.data(), read->bytes.size());
  delete read;
}

// Work that lasts until it is released.
void* simulated_hold(int index, int64_t stream) {
  auto* gate = new MarkerPtr(std::make_shared<Marker>());
  stream_of(index, stream).put([marker = *gate] { marker->wait(); });
  return gate;
}
void simulated_release(void* handle) {
  auto* gate = (MarkerPtr*)handle;
  (*gate)->set();
  delete gate;
}

int simulated_register(const void* address, size_t size) {
  if (capturing) ++calls_in_capture;
  unsigned char resident;
  if (mincore((void*)((uintptr_t)address & ~(BLOCK - 1)), 1, &resident)) return 1;  // not mapped
  if (registered().overlaps(address, size)) return ALREADY_REGISTERED;
  if (registered().nbytes() + size > register_limit) return NO_MEMORY;
  ++registrations;
  registered().add(address, size);
  registered_on()[(uintptr_t)address] = current_device;
  return OK;
}
int simulated_unregister(const void* address) {
  if (capturing) ++calls_in_capture;
  unsigned char resident;
  if (mincore((void*)((uintptr_t)address & ~(BLOCK - 1)), 1, &resident)) return 1;  // unmapped before
  if (!registered().remove(address)) return NOT_REGISTERED;
  if (registered_on()[(uintptr_t)address] != current_device) ++wrong_device;
  return OK;
}

long simulated_count(const char* name) {
  const std::map<std::string, long> counts{
      {"pinned_copies", pinned_copies}, {"staged_copies", staged_copies}, {"blocking_copies", blocking_copies},
      {"unregistered_reads", unregistered_reads}, {"live_events", live_events}, {"registrations", registrations},
      {"wrong_device", wrong_device}, {"calls_in_capture", calls_in_capture}, {"created_streams", created_streams},
      {"registered", (long)registered().nbytes()}, {"pinned", (long)pool().nbytes()},
      {"used", (long)device_memory().used()}, {"reserved", (long)device_memory().reserved()}};
  return counts.at(name);
}
bool simulated_is_registered(const void* address) { return registered().contains(address); }

}  // extern "C"
