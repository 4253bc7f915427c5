// A switch in user space with delay, rate, jitter and loss, for kernels without netem. It makes one TAP device per network
// namespace, moves Ethernet frames between them, and runs until it is killed; the devices go with it.
//
//   tap-relay --delay-us N --rate-mbit N --jitter-us N --loss-percent F --queue-kib N --seed N <namespace>...
//
//        eth0 of namespace s                                            eth0 of namespace d
//              │ read                                                         ▲ write
//              ▼                                                              │
//     ingress of port s: busy until t ──▶ egress of port d: busy until t' ──▶ queue of port d: due at t' + delay + jitter
//        (rate, bounded queue)                (rate, bounded queue)               (in order)
//
// Addresses: port k owns the hardware address 02:00:00:00:00:(k+1); other destinations are flooded. It prints "ready" when all
// devices exist; whoever started it gives them addresses. Large TCP segments cross as one frame (GSO) and are charged for the
// headers that a wire would carry; with loss, segmentation is left to the sender, so that single packets are lost, not bursts.
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
// The header names a field `class`.
#define class class_
#include <linux/virtio_net.h>
#undef class

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

namespace {

constexpr size_t kPortsMax = 64;
constexpr size_t kEthernetHeader = 14;
constexpr size_t kTcpHeaders = 54;  // Ethernet, IPv4 and TCP without options; used when the kernel does not say.
constexpr size_t kFrameMax = sizeof(virtio_net_hdr) + kEthernetHeader + 65536 + 64;
constexpr int kFramesPerTurn = 16;
constexpr size_t kPoolMax = 4096;
constexpr double kNever = 1e18;

struct Settings {
  double delay_s = 0;
  double jitter_s = 0;
  double bytes_per_s = 0;  // 0: no limit
  double loss = 0;         // probability
  double queue_bytes = 4096 * 1024.0;
  uint64_t seed = 1;
  std::vector<std::string> namespaces;
};

[[noreturn]] void fail(const std::string& what) {
  fprintf(stderr, "tap-relay: %s: %s\n", what.c_str(), strerror(errno));
  exit(1);
}

[[noreturn]] void usage(const std::string& what) {
  fprintf(stderr, "tap-relay: %s\n", what.c_str());
  exit(2);
}

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

// xorshift64*: the same seed loses the same packets.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed == 0 ? 1 : seed) {}
  double next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return static_cast<double>((state_ * 0x2545F4914F6CDD1DULL) >> 11) / 9007199254740992.0;
  }

 private:
  uint64_t state_;
};

Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; i++) {
    const std::string name = argv[i];
    if (name.rfind("--", 0) != 0) {
      settings.namespaces.push_back(name);
      continue;
    }
    if (i + 1 == argc) usage(name + " needs a value");
    char* end = nullptr;
    const double value = strtod(argv[++i], &end);
    if (*end != '\0' || !(value >= 0)) usage(name + " needs a number from 0, not " + argv[i]);
    if (name == "--delay-us") settings.delay_s = value * 1e-6;
    else if (name == "--jitter-us") settings.jitter_s = value * 1e-6;
    else if (name == "--rate-mbit") settings.bytes_per_s = value * 1e6 / 8;
    else if (name == "--loss-percent") settings.loss = value / 100;
    else if (name == "--queue-kib") settings.queue_bytes = value * 1024;
    else if (name == "--seed") settings.seed = static_cast<uint64_t>(value);
    else usage("unknown option " + name);
  }
  if (settings.namespaces.size() < 2 || settings.namespaces.size() > kPortsMax) usage("between 2 and 64 namespaces are needed");
  return settings;
}

// A TAP device called eth0 in the namespace; its descriptor.
int open_device(const std::string& name, int home, bool segments) {
  const int there = open(("/var/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (there < 0) fail("namespace " + name);
  if (setns(there, CLONE_NEWNET) != 0) fail("entering namespace " + name);
  close(there);
  const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (device < 0) fail("/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  strncpy(request.ifr_name, "eth0", IFNAMSIZ - 1);
  if (ioctl(device, TUNSETIFF, &request) != 0) fail("making eth0 in " + name);
  const int header = sizeof(virtio_net_hdr);
  if (ioctl(device, TUNSETVNETHDRSZ, &header) != 0) fail("header size");
  if (ioctl(device, TUNSETOFFLOAD, segments ? TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 : 0) != 0) fail("offloads");
  const int send_buffer = 1 << 30;
  if (ioctl(device, TUNSETSNDBUF, &send_buffer) != 0) fail("send buffer");
  if (setns(home, CLONE_NEWNET) != 0) fail("returning home");
  return device;
}

struct Frame {
  double due;
  std::vector<char> bytes;
};

struct Port {
  int device;
  double ingress_until = 0;
  double egress_until = 0;
  double last_due = 0;
  std::deque<Frame> queue;
};

class Relay {
 public:
  explicit Relay(const Settings& settings) : settings_(settings), dice_(settings.seed), buffer_(kFrameMax) {
    const int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (home < 0) fail("/proc/self/ns/net");
    for (const std::string& name : settings.namespaces) {
      Port port;
      port.device = open_device(name, home, settings.loss == 0);
      ports_.push_back(std::move(port));
    }
    close(home);
  }

  [[noreturn]] void run() {
    for (;;) {
      bool moved = false;
      for (size_t k = 0; k < ports_.size(); k++) moved |= take(k);
      for (Port& port : ports_) moved |= deliver(port);
      if (!moved) sleep();
    }
  }

 private:
  // Reads what port `from` sends.
  bool take(size_t from) {
    bool any = false;
    for (int k = 0; k < kFramesPerTurn; k++) {
      const ssize_t length = read(ports_[from].device, buffer_.data(), buffer_.size());
      if (length < 0 && errno != EAGAIN && errno != EINTR) fail("reading from a device");
      if (length <= 0) break;
      any = true;
      if (static_cast<size_t>(length) >= sizeof(virtio_net_hdr) + kEthernetHeader) forward(from, static_cast<size_t>(length));
    }
    return any;
  }

  void forward(size_t from, size_t length) {
    const double wire = wire_bytes(length);
    const double arrival = now();
    double departure = arrival;
    if (settings_.bytes_per_s > 0 && !pass(ports_[from].ingress_until, arrival, wire, settings_.queue_bytes, &departure)) return;
    if (settings_.loss > 0 && dice_.next() < settings_.loss) return;
    const unsigned char* target = reinterpret_cast<const unsigned char*>(buffer_.data()) + sizeof(virtio_net_hdr);
    const int known = port_of(target);
    for (size_t to = 0; to < ports_.size(); to++) {
      if (to != from && (known < 0 || static_cast<size_t>(known) == to)) enqueue(to, length, wire, arrival, departure);
    }
  }

  void enqueue(size_t to, size_t length, double wire, double arrival, double departure) {
    Port& port = ports_[to];
    double due = departure;
    if (settings_.bytes_per_s > 0) {
      // Frames go through as they come in: the exit is busy from the moment their first byte arrives.
      const double first = departure - wire / settings_.bytes_per_s;
      port.egress_until = std::max(port.egress_until, first);
      if ((port.egress_until - arrival) * settings_.bytes_per_s > 2 * settings_.queue_bytes) return;
      port.egress_until += wire / settings_.bytes_per_s;
      due = port.egress_until;
    }
    due += settings_.delay_s + (settings_.jitter_s > 0 ? dice_.next() * settings_.jitter_s : 0);
    port.last_due = std::max(port.last_due, due);
    Frame frame{port.last_due, {}};
    if (!pool_.empty()) {
      frame.bytes = std::move(pool_.back());
      pool_.pop_back();
    }
    frame.bytes.assign(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(length));
    port.queue.push_back(std::move(frame));
  }

  // Sends `wire` bytes over a line that is busy until `until`; false when its queue is full.
  bool pass(double& until, double at, double wire, double queue_bytes, double* departure) const {
    until = std::max(until, at);
    if ((until - at) * settings_.bytes_per_s > queue_bytes) return false;
    until += wire / settings_.bytes_per_s;
    *departure = until;
    return true;
  }

  bool deliver(Port& port) {
    bool any = false;
    const double time = now();
    while (!port.queue.empty() && port.queue.front().due <= time) {
      Frame& frame = port.queue.front();
      // A frame that the kernel does not take is lost, as on any wire.
      const ssize_t written = write(port.device, frame.bytes.data(), frame.bytes.size());
      (void)written;
      if (pool_.size() < kPoolMax) pool_.push_back(std::move(frame.bytes));
      port.queue.pop_front();
      any = true;
    }
    return any;
  }

  void sleep() const {
    double next = kNever;
    pollfd waits[kPortsMax];
    for (size_t k = 0; k < ports_.size(); k++) {
      waits[k] = {ports_[k].device, POLLIN, 0};
      if (!ports_[k].queue.empty()) next = std::min(next, ports_[k].queue.front().due);
    }
    const double left = std::max(0.0, next - now());
    const timespec time{static_cast<time_t>(left), static_cast<long>((left - static_cast<double>(static_cast<time_t>(left))) * 1e9)};
    ppoll(waits, ports_.size(), next == kNever ? nullptr : &time, nullptr);
  }

  // Bytes on a wire: a segment that stands for several is charged for the headers of each.
  double wire_bytes(size_t length) const {
    virtio_net_hdr header;
    memcpy(&header, buffer_.data(), sizeof header);
    const size_t frame = length - sizeof header;
    if (header.gso_type == VIRTIO_NET_HDR_GSO_NONE || header.gso_size == 0) return static_cast<double>(frame);
    const size_t headers = header.hdr_len > 0 && header.hdr_len < frame ? header.hdr_len : std::min(kTcpHeaders, frame);
    const size_t segments = std::max<size_t>(1, (frame - headers + header.gso_size - 1) / header.gso_size);
    return static_cast<double>(frame + (segments - 1) * headers);
  }

  // The port that owns a hardware address; −1: all but the sender.
  int port_of(const unsigned char* address) const {
    static const unsigned char prefix[5] = {2, 0, 0, 0, 0};
    if (memcmp(address, prefix, sizeof prefix) != 0) return -1;
    return address[5] >= 1 && address[5] <= ports_.size() ? address[5] - 1 : -1;
  }

  const Settings settings_;
  Dice dice_;
  std::vector<char> buffer_;
  std::vector<Port> ports_;
  std::vector<std::vector<char>> pool_;
};

}  // namespace

int main(int argc, char** argv) {
  // Not without the one who started us; timers to the microsecond.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  prctl(PR_SET_TIMERSLACK, 1UL);
  Relay relay(parse(argc, argv));
  puts("ready");
  fflush(stdout);
  relay.run();
}
