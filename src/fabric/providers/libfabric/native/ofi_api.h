// The part of libfabric that Shoal uses, declared here and found at run time: neither building nor loading the addon needs it.
//
// These are layouts of its binary interface, version 1.3 of its symbols, which later releases keep. Where its headers are
// installed, ofi_load.cc has the compiler compare them with these.
#pragma once
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

namespace shoal::ofi {

constexpr uint32_t kVersion = 1u << 16 | 9;  // the version that is asked for: 1.9, the first with everything that is used

constexpr uint64_t kMsg = 1ull << 1, kRma = 1ull << 2, kWrite = 1ull << 9, kRecv = 1ull << 10, kSend = 1ull << 11;
constexpr uint64_t kRemoteWrite = 1ull << 13, kRemoteCqData = 1ull << 17, kCompletion = 1ull << 24, kDeliveryComplete = 1ull << 28;
constexpr uint64_t kSource = 1ull << 57;
constexpr uint64_t kModeContext = 1ull << 59, kModeContext2 = 1ull << 52, kModeRxCqData = 1ull << 56;
constexpr int kMrLocal = 1 << 2, kMrVirtAddr = 1 << 4, kMrAllocated = 1 << 5, kMrProvKey = 1 << 6, kMrEndpoint = 1 << 9;
constexpr int kEpRdm = 3, kAvTable = 2, kProgressManual = 2, kRmEnabled = 2;
constexpr uint32_t kSockaddrIn = 2, kSockaddrIn6 = 3, kAddrStr = 9;
constexpr int kCqFormatData = 3, kWaitNone = 0, kWaitFd = 3;
constexpr int kGetWait = 5, kEnable = 6;
constexpr int kTcDscp = 0x100;
/// libfabric's own error numbers begin above the system's.
constexpr int kErrorAvailable = 259;

struct Fid;
struct FidOps {
  size_t size;
  int (*close)(Fid*);
  int (*bind)(Fid*, Fid*, uint64_t flags);
  int (*control)(Fid*, int command, void* argument);
};
struct Fid {
  size_t fclass;
  void* context;
  FidOps* ops;
};

struct TxAttr {
  uint64_t caps, mode, op_flags, msg_order, comp_order;
  size_t inject_size, size, iov_limit, rma_iov_limit;
  uint32_t tclass;
};
struct RxAttr {
  uint64_t caps, mode, op_flags, msg_order, comp_order;
  size_t total_buffered_recv, size, iov_limit;
};
struct EpAttr {
  int type;
  uint32_t protocol, protocol_version;
  size_t max_msg_size, msg_prefix_size, max_order_raw_size, max_order_war_size, max_order_waw_size;
  uint64_t mem_tag_format;
  size_t tx_ctx_cnt, rx_ctx_cnt, auth_key_size;
  uint8_t* auth_key;
};
struct DomainAttr {
  void* domain;
  char* name;
  int threading, control_progress, data_progress, resource_mgmt, av_type, mr_mode;
  size_t mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt, max_ep_tx_ctx, max_ep_rx_ctx, max_ep_stx_ctx, max_ep_srx_ctx;
  size_t cntr_cnt, mr_iov_limit;
  uint64_t caps, mode;
  uint8_t* auth_key;
  size_t auth_key_size, max_err_data, mr_cnt;
  uint32_t tclass;
};
struct FabricAttr {
  void* fabric;
  char* name;
  char* prov_name;
  uint32_t prov_version, api_version;
};
struct Info {
  Info* next;
  uint64_t caps, mode;
  uint32_t addr_format;
  size_t src_addrlen, dest_addrlen;
  void* src_addr;
  void* dest_addr;
  Fid* handle;
  TxAttr* tx_attr;
  RxAttr* rx_attr;
  EpAttr* ep_attr;
  DomainAttr* domain_attr;
  FabricAttr* fabric_attr;
  void* nic;
};

struct Fabric;
struct Domain;
struct Av;
struct Cq;
struct Ep;
struct Mr {
  Fid fid;
  void* mem_desc;
  uint64_t key;
};

struct FabricOps {
  size_t size;
  int (*domain)(Fabric*, Info*, Domain**, void* context);
  void *passive_ep, *eq_open, *wait_open;
  int (*trywait)(Fabric*, Fid**, int count);
};
struct Fabric {
  Fid fid;
  FabricOps* ops;
  uint32_t api_version;
};

struct AvAttr {
  int type, rx_ctx_bits;
  size_t count, ep_per_node;
  const char* name;
  void* map_addr;
  uint64_t flags;
};
struct AvOps {
  size_t size;
  int (*insert)(Av*, const void* address, size_t count, uint64_t* out, uint64_t flags, void* context);
};
struct Av {
  Fid fid;
  AvOps* ops;
};

struct CqAttr {
  size_t size;
  uint64_t flags;
  int format, wait_obj, signaling_vector, wait_cond;
  void* wait_set;
};
struct CqEntry {
  void* op_context;
  uint64_t flags;
  size_t len;
  void* buf;
  uint64_t data;
};
struct CqError {
  void* op_context;
  uint64_t flags;
  size_t len;
  void* buf;
  uint64_t data, tag;
  size_t olen;
  int err, prov_errno;
  void* err_data;
  size_t err_data_size;
};
struct CqOps {
  size_t size;
  ssize_t (*read)(Cq*, void* entries, size_t count);
  void* readfrom;
  ssize_t (*readerr)(Cq*, CqError*, uint64_t flags);
};
struct Cq {
  Fid fid;
  CqOps* ops;
};

struct DomainOps {
  size_t size;
  int (*av_open)(Domain*, AvAttr*, Av**, void* context);
  int (*cq_open)(Domain*, CqAttr*, Cq**, void* context);
  int (*endpoint)(Domain*, Info*, Ep**, void* context);
};
struct MrOps {
  size_t size;
  int (*reg)(Fid*, const void* data, size_t bytes, uint64_t access, uint64_t offset, uint64_t requested_key, uint64_t flags, Mr**, void* context);
};
struct Domain {
  Fid fid;
  DomainOps* ops;
  MrOps* mr;
};

struct CmOps {
  size_t size;
  void* setname;
  int (*getname)(Fid*, void* address, size_t* bytes);
};
struct MsgOps {
  size_t size;
  ssize_t (*recv)(Ep*, void* data, size_t bytes, void* desc, uint64_t source, void* context);
  void *recvv, *recvmsg;
  ssize_t (*send)(Ep*, const void* data, size_t bytes, void* desc, uint64_t target, void* context);
};
struct RmaIov {
  uint64_t addr;
  size_t len;
  uint64_t key;
};
struct RmaMessage {
  const iovec* msg_iov;
  void** desc;
  size_t iov_count;
  uint64_t addr;
  const RmaIov* rma_iov;
  size_t rma_iov_count;
  void* context;
  uint64_t data;
};
struct RmaOps {
  size_t size;
  void *read, *readv, *readmsg;
  ssize_t (*write)(Ep*, const void* data, size_t bytes, void* desc, uint64_t target, uint64_t address, uint64_t key, void* context);
  void* writev;
  ssize_t (*writemsg)(Ep*, const RmaMessage*, uint64_t flags);
  void* inject;
  ssize_t (*writedata)(Ep*, const void* data, size_t bytes, void* desc, uint64_t immediate, uint64_t target, uint64_t address, uint64_t key, void* context);
};
struct Ep {
  Fid fid;
  void* ops;
  CmOps* cm;
  MsgOps* msg;
  RmaOps* rma;
};

/// The library's functions.
struct Api {
  uint32_t (*version)() = nullptr;
  int (*getinfo)(uint32_t version, const char* node, const char* service, uint64_t flags, const Info* hints, Info** out) = nullptr;
  void (*freeinfo)(Info*) = nullptr;
  Info* (*dupinfo)(const Info*) = nullptr;
  int (*fabric)(FabricAttr*, Fabric**, void* context) = nullptr;
  const char* (*strerror)(int) = nullptr;
};

/// The library, loaded once per process; null with the reason in `why` when there is no usable one.
const Api* load(const char*& why);

}  // namespace shoal::ofi
