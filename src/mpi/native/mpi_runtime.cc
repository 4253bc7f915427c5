#include "mpi_runtime.h"

#include <dlfcn.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace shoal::mpi {
namespace {

/// Most bytes received and not taken: beyond, messages stay with MPI, whose own flow control stops the senders.
constexpr size_t kUntakenMax = size_t{512} << 20;
constexpr int kErrorInStatus = 18;
/// Number of looks before the thread gives its time away, and the time that it then sleeps.
constexpr int kYields = 100;
constexpr int kSleepLeastUs = 20;
constexpr int kSleepMostUs = 2000;
/// Longest sleep with requests under way.
constexpr int kSleepBusyUs = 100;

/// Minimum and maximum with the results of Shoal's kernels: a NaN wins, −0 is below +0. MPI leaves both open.
template <size_t dtype, size_t op>
void combine(void* in, void* in_out, int* count, Datatype*) {
  auto* target = static_cast<uint8_t*>(in_out);
  const uint8_t* sources[] = {static_cast<uint8_t*>(in), target};
  constexpr int32_t tree[] = {0, 1, -1};
  kernels().reduce[dtype][op]({static_cast<size_t>(*count), Division::of(NAN), &target, 1, sources, 2, tree, 3, 2});
}

/// Keeps this code loaded: the MPI thread may outlive the JavaScript thread that loaded it.
void stay_loaded() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&stay_loaded), &info) != 0) dlopen(info.dli_fname, RTLD_NOW | RTLD_NODELETE);
}

}  // namespace

// ── inboxes and tasks ───────────────────────────────────────────────────────────────────────────────────────────────

std::vector<Event> Inbox::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

bool Inbox::push(Event&& event) {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  events_.push_back(std::move(event));
  if (events_.size() == 1) wake_(user_);
  return true;
}

size_t Inbox::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  size_t bytes = 0;
  for (const Event& event : events_) bytes += event.bytes;
  events_.clear();
  return bytes;
}

void Task::finish(Runtime& runtime, int error) {
  if (std::isnan(id) && error == kSuccess) return;
  inbox->push({EventKind::kDone, id, 0, error == kSuccess ? "" : runtime.text_of(error)});
}

/// A message on its way in.
struct Runtime::Arrival {
  int source;
  int tag;
  size_t bytes;
  bool wanted;
  bool complete = false;
  std::unique_ptr<uint8_t, void (*)(void*)> data{nullptr, std::free};
};

/// Receives a message. Large messages may be complete after smaller ones that began later.
class Runtime::Receive final : public Task {
 public:
  Receive(Message message, std::shared_ptr<Arrival> arrival) : Task(nullptr, NAN, false), message_(message), arrival_(std::move(arrival)) {}

  int start(Runtime& runtime, Request& request) override {
    const Api& api = *runtime.api_;
    return api.Imrecv(arrival_->data.get(), static_cast<int>(arrival_->bytes), api.byte_object, &message_, &request);
  }

  void finish(Runtime& runtime, int error) override {
    if (error != kSuccess && arrival_->wanted) {
      arrival_->wanted = false;
      runtime.consumed(arrival_->bytes);
    }
    arrival_->complete = true;
    runtime.deliver(arrival_->source);
  }

 private:
  Message message_;
  const std::shared_ptr<Arrival> arrival_;
};

// ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────────

Runtime& Runtime::instance() {
  // The runtime is never destroyed: its thread may outlive everything else.
  static auto* runtime = new Runtime;
  return *runtime;
}

void Runtime::open(const Api* api, const InboxPtr& inbox) {
  std::lock_guard lock(mutex_);
  inboxes_.push_back(inbox);
  if (state_ == State::kNone) {
    state_ = State::kStarting;
    api_ = api;
    stay_loaded();
    thread_ = std::thread([this] { run(); });
  } else if (state_ == State::kOpen) {
    inbox->push({EventKind::kOpened, double(rank_), double(size_), api_->version});
  } else if (state_ == State::kEnded) {
    inbox->push({EventKind::kFailed, 0, 0, failure_});
  }
}

void Runtime::close(const InboxPtr& inbox, int timeout_ms) {
  std::unique_lock lock(mutex_);
  for (auto it = ports_.begin(); it != ports_.end();) it = it->second.inbox == inbox ? ports_.erase(it) : std::next(it);
  const auto settled = [&] { return inbox->borrowing_ == 0 || state_ == State::kEnded; };
  changed_.notify_one();
  if (!settled_.wait_for(lock, std::chrono::milliseconds(timeout_ms), settled)) {
    failure_ = "a thread of this process ended with transfers under way";
    stop_ = true;
    changed_.notify_one();
    settled_.wait(lock, [&] { return state_ == State::kEnded; });
  }
  for (auto it = communicators_.begin(); it != communicators_.end();) {
    it = it->first.first == inbox.get() ? communicators_.erase(it) : std::next(it);
  }
  consumed(inbox->close());
  for (auto it = inboxes_.begin(); it != inboxes_.end();) it = *it == inbox ? inboxes_.erase(it) : std::next(it);
}

void Runtime::at_exit(int status, void* self) { static_cast<Runtime*>(self)->finish(status == 0); }

/// Ends MPI. Ranks of a job end together: MPI_Finalize waits for the others. After a failure it is left out, and mpirun ends them.
void Runtime::finish(bool orderly) {
  if (std::this_thread::get_id() == thread_.get_id()) return;
  {
    std::lock_guard lock(mutex_);
    if (!stop_) orderly_ = orderly && creating_ == 0;
    stop_ = true;
    changed_.notify_one();
  }
  thread_.join();
}

bool Runtime::initialise(std::string& why) {
  int started = 0, ended = 0, provided = 0;
  api_->Initialized(&started);
  api_->Finalized(&ended);
  if (ended != 0) {
    why = "MPI has been finalized in this process already";
    return false;
  }
  const int error = started != 0 ? api_->Query_thread(&provided) : api_->Init_thread(nullptr, nullptr, kThreadMultiple, &provided);
  if (error != kSuccess || provided < kThreadMultiple) {
    why = error != kSuccess ? text_of(error) : "this MPI does not support calls from several threads (MPI_THREAD_MULTIPLE)";
    return false;
  }
  const Comm world = api_->comm_world_object;
  int* tag_most = nullptr;
  int known = 0;
  api_->Comm_set_errhandler(world, api_->errors_return_object);
  api_->Comm_rank(world, &rank_);
  api_->Comm_size(world, &size_);
  api_->Comm_get_attr(world, kTagUpperBound, &tag_most, &known);
  if (known == 0 || *tag_most < (1 << 23) - 1) {
    why = "this MPI's tags have fewer than 23 bits";
    return false;
  }
  if (api_->Comm_dup(world, &messages_) != kSuccess || api_->Comm_dup(world, &groups_) != kSuccess ||
      api_->Op_create(combine<kF64, kMin>, 1, &float_min_[0]) != kSuccess || api_->Op_create(combine<kF32, kMin>, 1, &float_min_[1]) != kSuccess ||
      api_->Op_create(combine<kF64, kMax>, 1, &float_max_[0]) != kSuccess || api_->Op_create(combine<kF32, kMax>, 1, &float_max_[1]) != kSuccess) {
    why = "MPI_Comm_dup or MPI_Op_create failed";
    return false;
  }
  api_->Comm_set_errhandler(messages_, api_->errors_return_object);
  api_->Comm_set_errhandler(groups_, api_->errors_return_object);
#ifdef __GLIBC__
  on_exit(at_exit, this);
#else
  std::atexit([] { instance().finish(true); });
#endif
  return true;
}

void Runtime::run() {
  prctl(PR_SET_NAME, "shoal-mpi");
  prctl(PR_SET_TIMERSLACK, 1000UL);
  std::string why;
  const bool usable = initialise(why);
  if (!usable) {
    end(why);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    state_ = State::kOpen;
    for (const InboxPtr& inbox : inboxes_) inbox->push({EventKind::kOpened, double(rank_), double(size_), api_->version});
  }
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (stop_) break;
    }
    const bool started = start_submitted();
    const bool tested = test_active();
    pause(receive() || started || tested);
  }
  if (orderly_) api_->Finalize();
  end("MPI has ended in this process");
}

void Runtime::end(std::string why) {
  std::lock_guard lock(mutex_);
  state_ = State::kEnded;
  if (failure_.empty()) failure_ = std::move(why);
  for (const InboxPtr& inbox : inboxes_) inbox->push({EventKind::kFailed, 0, 0, failure_});
  settled_.notify_all();
}

// ── calls of JavaScript threads ─────────────────────────────────────────────────────────────────────────────────────

void Runtime::submit(std::unique_ptr<Task> task) {
  std::lock_guard lock(mutex_);
  // After the end the inbox has been told already.
  if (state_ != State::kOpen) return;
  if (task->borrows) task->inbox->borrowing_++;
  submitted_.push_back(std::move(task));
  if (submitted_.size() == 1) changed_.notify_one();
}

bool Runtime::claim(const InboxPtr& inbox, int port, size_t bytes_max) {
  std::lock_guard lock(mutex_);
  return ports_.emplace(port, Port{inbox, bytes_max}).second;
}

void Runtime::release(const InboxPtr& inbox, int port) {
  std::lock_guard lock(mutex_);
  const auto found = ports_.find(port);
  if (found != ports_.end() && found->second.inbox == inbox) ports_.erase(found);
}

// ── calls of tasks ──────────────────────────────────────────────────────────────────────────────────────────────────

Op Runtime::op(size_t dtype, size_t op) const {
  switch (op) {
    case kSum: return dtype == kBool ? api_->op_lor_object : api_->op_sum_object;
    case kProduct: return dtype == kBool ? api_->op_land_object : api_->op_prod_object;
    case kMin: return dtype <= kF32 ? float_min_[dtype] : api_->op_min_object;
    case kMax: return dtype <= kF32 ? float_max_[dtype] : api_->op_max_object;
    case kBitAnd: return api_->op_band_object;
    case kBitOr: return api_->op_bor_object;
    default: return dtype == kBool ? api_->op_lxor_object : api_->op_bxor_object;
  }
}

Comm Runtime::communicator(const InboxPtr& inbox, double group) {
  std::lock_guard lock(mutex_);
  const auto found = communicators_.find({inbox.get(), group});
  return found == communicators_.end() ? nullptr : found->second;
}

/// MPI's call for this blocks, so it runs in a thread of its own; only the members take part.
void Runtime::create_communicator(const InboxPtr& inbox, double id, double group, std::vector<int> ranks) {
  {
    std::lock_guard lock(mutex_);
    if (state_ != State::kOpen) return;
    creating_++;
  }
  std::thread([this, inbox, id, group, ranks = std::move(ranks)] {
    Group all = nullptr, members = nullptr;
    Comm made = nullptr;
    int error = api_->Comm_group(groups_, &all);
    if (error == kSuccess) error = api_->Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &members);
    if (error == kSuccess) error = api_->Comm_create_group(groups_, members, static_cast<int>(group) & 0x7fff, &made);
    if (error == kSuccess) error = api_->Comm_set_errhandler(made, api_->errors_return_object);
    if (members != nullptr) api_->Group_free(&members);
    if (all != nullptr) api_->Group_free(&all);
    std::lock_guard lock(mutex_);
    creating_--;
    if (error == kSuccess) communicators_[{inbox.get(), group}] = made;
    inbox->push({EventKind::kDone, id, 0, error == kSuccess ? "" : text_of(error)});
  }).detach();
}

void Runtime::free_communicator(const InboxPtr& inbox, double group) {
  Comm freed = nullptr;
  {
    std::lock_guard lock(mutex_);
    const auto found = communicators_.find({inbox.get(), group});
    if (found == communicators_.end()) return;
    freed = found->second;
    communicators_.erase(found);
  }
  api_->Comm_free(&freed);
}

std::string Runtime::text_of(int error) const {
  char text[kErrorTextMax] = "";
  int length = 0;
  api_->Error_string(error, text, &length);
  return text[0] == '\0' ? "MPI error " + std::to_string(error) : text;
}

// ── progress ────────────────────────────────────────────────────────────────────────────────────────────────────────

bool Runtime::start_submitted() {
  std::vector<std::unique_ptr<Task>> starting;
  {
    std::lock_guard lock(mutex_);
    if (submitted_.empty()) return false;
    starting.swap(submitted_);
  }
  for (auto& task : starting) {
    Request request = nullptr;
    const int error = task->start(*this, request);
    if (error == kSuccess && request != nullptr) {
      active_.push_back(std::move(task));
      requests_.push_back(request);
      continue;
    }
    task->finish(*this, error);
    done(*task);
  }
  return true;
}

void Runtime::done(const Task& task) {
  if (!task.borrows) return;
  std::lock_guard lock(mutex_);
  if (--task.inbox->borrowing_ == 0) settled_.notify_all();
}

bool Runtime::test_active() {
  if (requests_.empty()) return false;
  const int count = static_cast<int>(requests_.size());
  statuses_.resize(requests_.size());
  indices_.resize(requests_.size());
  int completed = 0;
  const int outcome = api_->Testsome(count, requests_.data(), &completed, indices_.data(), statuses_.data());
  if (completed <= 0) return false;
  for (int k = 0; k < completed; k++) {
    const auto index = static_cast<size_t>(indices_[static_cast<size_t>(k)]);
    const auto task = std::move(active_[index]);
    task->finish(*this, outcome == kErrorInStatus ? statuses_[static_cast<size_t>(k)].error : outcome);
    done(*task);
  }
  size_t kept = 0;
  for (size_t k = 0; k < active_.size(); k++) {
    if (active_[k] == nullptr) continue;
    active_[kept] = std::move(active_[k]);
    requests_[kept++] = requests_[k];
  }
  active_.resize(kept);
  requests_.resize(kept);
  return true;
}

/// Takes messages that have come, as long as there is room for them.
bool Runtime::receive() {
  bool moved = false;
  while (untaken_ < kUntakenMax) {
    int found = 0, bytes = 0;
    Message message = nullptr;
    Status status;
    if (api_->Improbe(kAny, kAny, messages_, &found, &message, &status) != kSuccess || found == 0) return moved;
    moved = true;
    api_->Get_count(&status, api_->byte_object, &bytes);
    const auto size = static_cast<size_t>(bytes < 0 ? 0 : bytes);
    bool wanted = false;
    {
      std::lock_guard lock(mutex_);
      const auto port = ports_.find(status.tag >> 2);
      wanted = port != ports_.end() && size <= port->second.bytes_max;
      if (port != ports_.end() && !wanted) port->second.inbox->push({EventKind::kOversize, double(status.source), double(status.tag), ""});
    }
    if (wanted) untaken_ += size;
    // A message that nobody wants is received whole all the same: into a buffer that is too small Open MPI may write beyond its end.
    auto arrival = std::make_shared<Arrival>(Arrival{status.source, status.tag, size, wanted});
    arrival->data.reset(static_cast<uint8_t*>(std::malloc(size + 1)));
    if (arrival->data == nullptr) {
      std::lock_guard lock(mutex_);
      failure_ = "there is no memory for a message of " + std::to_string(size) + " bytes";
      stop_ = true;
      return true;
    }
    arriving_[status.source].push_back(arrival);
    auto receive = std::make_unique<Receive>(message, std::move(arrival));
    Request request = nullptr;
    const int error = receive->start(*this, request);
    if (error != kSuccess) {
      receive->finish(*this, error);
      continue;
    }
    active_.push_back(std::move(receive));
    requests_.push_back(request);
  }
  return moved;
}

/// Passes on complete messages, in the order in which they were sent.
void Runtime::deliver(int source) {
  auto& queue = arriving_[source];
  for (; !queue.empty() && queue.front()->complete; queue.pop_front()) {
    Arrival& arrival = *queue.front();
    if (!arrival.wanted) continue;
    InboxPtr inbox;
    {
      std::lock_guard lock(mutex_);
      const auto port = ports_.find(arrival.tag >> 2);
      if (port != ports_.end()) inbox = port->second.inbox;
    }
    Event event{EventKind::kMessage, double(arrival.source), double(arrival.tag), "", std::move(arrival.data), arrival.bytes};
    if (inbox == nullptr || !inbox->push(std::move(event))) consumed(arrival.bytes);
  }
}

void Runtime::pause(bool moved) {
  if (moved) {
    idle_ = 0;
    return;
  }
  if (idle_ < kYields) {
    idle_++;
    sched_yield();
    return;
  }
  const int doublings = (idle_ - kYields) / 8;
  if (doublings < 7) idle_++;
  const int most = requests_.empty() ? kSleepMostUs : kSleepBusyUs;
  std::unique_lock lock(mutex_);
  if (!submitted_.empty() || stop_) return;
  changed_.wait_for(lock, std::chrono::microseconds(std::min(most, kSleepLeastUs << doublings)));
  if (!submitted_.empty()) idle_ = 0;
}

}  // namespace shoal::mpi
