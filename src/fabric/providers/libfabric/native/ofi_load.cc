// Finds libfabric on this machine.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "ofi_objects.h"

#if __has_include(<rdma/fi_rma.h>) && __has_include(<rdma/fi_cm.h>)
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

// The declarations of ofi_api.h must be those of the installed headers.
namespace shoal::ofi {
#define SHOAL_OFI_SIZE(ours, theirs) static_assert(sizeof(ours) == sizeof(theirs), "ofi_api.h: size of " #theirs)
#define SHOAL_OFI_AT(ours, our_field, theirs, field) static_assert(offsetof(ours, our_field) == offsetof(theirs, field), "ofi_api.h: " #theirs "." #field)
#define SHOAL_OFI_IS(ours, theirs) static_assert(static_cast<uint64_t>(ours) == static_cast<uint64_t>(theirs), "ofi_api.h: " #theirs)
SHOAL_OFI_SIZE(Info, fi_info);
SHOAL_OFI_SIZE(TxAttr, fi_tx_attr);
SHOAL_OFI_SIZE(RxAttr, fi_rx_attr);
SHOAL_OFI_SIZE(EpAttr, fi_ep_attr);
SHOAL_OFI_SIZE(FabricAttr, fi_fabric_attr);
SHOAL_OFI_SIZE(AvAttr, fi_av_attr);
SHOAL_OFI_SIZE(CqAttr, fi_cq_attr);
SHOAL_OFI_SIZE(CqEntry, fi_cq_data_entry);
SHOAL_OFI_SIZE(CqError, fi_cq_err_entry);
SHOAL_OFI_SIZE(RmaMessage, fi_msg_rma);
SHOAL_OFI_SIZE(RmaIov, fi_rma_iov);
SHOAL_OFI_SIZE(Mr, fid_mr);
SHOAL_OFI_AT(Info, addr_format, fi_info, addr_format);
SHOAL_OFI_AT(Info, fabric_attr, fi_info, fabric_attr);
SHOAL_OFI_AT(TxAttr, tclass, fi_tx_attr, tclass);
SHOAL_OFI_AT(RxAttr, size, fi_rx_attr, size);
SHOAL_OFI_AT(EpAttr, max_order_waw_size, fi_ep_attr, max_order_waw_size);
SHOAL_OFI_AT(DomainAttr, mr_mode, fi_domain_attr, mr_mode);
SHOAL_OFI_AT(DomainAttr, cq_data_size, fi_domain_attr, cq_data_size);
SHOAL_OFI_AT(DomainAttr, tclass, fi_domain_attr, tclass);
SHOAL_OFI_AT(FidOps, control, fi_ops, control);
SHOAL_OFI_AT(FabricOps, trywait, fi_ops_fabric, trywait);
SHOAL_OFI_AT(Fabric, ops, fid_fabric, ops);
SHOAL_OFI_AT(DomainOps, endpoint, fi_ops_domain, endpoint);
SHOAL_OFI_AT(MrOps, reg, fi_ops_mr, reg);
SHOAL_OFI_AT(Domain, mr, fid_domain, mr);
SHOAL_OFI_AT(AvOps, insert, fi_ops_av, insert);
SHOAL_OFI_AT(CqOps, readerr, fi_ops_cq, readerr);
SHOAL_OFI_AT(CmOps, getname, fi_ops_cm, getname);
SHOAL_OFI_AT(MsgOps, send, fi_ops_msg, send);
SHOAL_OFI_AT(RmaOps, writemsg, fi_ops_rma, writemsg);
SHOAL_OFI_AT(RmaOps, writedata, fi_ops_rma, writedata);
SHOAL_OFI_AT(Ep, cm, fid_ep, cm);
SHOAL_OFI_AT(Ep, rma, fid_ep, rma);
SHOAL_OFI_IS(kMsg, FI_MSG);
SHOAL_OFI_IS(kRma, FI_RMA);
SHOAL_OFI_IS(kWrite, FI_WRITE);
SHOAL_OFI_IS(kRecv, FI_RECV);
SHOAL_OFI_IS(kSend, FI_SEND);
SHOAL_OFI_IS(kRemoteWrite, FI_REMOTE_WRITE);
SHOAL_OFI_IS(kRemoteCqData, FI_REMOTE_CQ_DATA);
SHOAL_OFI_IS(kCompletion, FI_COMPLETION);
SHOAL_OFI_IS(kDeliveryComplete, FI_DELIVERY_COMPLETE);
SHOAL_OFI_IS(kSource, FI_SOURCE);
SHOAL_OFI_IS(kModeContext, FI_CONTEXT);
SHOAL_OFI_IS(kModeContext2, FI_CONTEXT2);
SHOAL_OFI_IS(kModeRxCqData, FI_RX_CQ_DATA);
SHOAL_OFI_IS(kMrLocal, FI_MR_LOCAL);
SHOAL_OFI_IS(kMrVirtAddr, FI_MR_VIRT_ADDR);
SHOAL_OFI_IS(kMrAllocated, FI_MR_ALLOCATED);
SHOAL_OFI_IS(kMrProvKey, FI_MR_PROV_KEY);
SHOAL_OFI_IS(kMrEndpoint, FI_MR_ENDPOINT);
SHOAL_OFI_IS(kEpRdm, FI_EP_RDM);
SHOAL_OFI_IS(kAvTable, FI_AV_TABLE);
SHOAL_OFI_IS(kProgressManual, FI_PROGRESS_MANUAL);
SHOAL_OFI_IS(kRmEnabled, FI_RM_ENABLED);
SHOAL_OFI_IS(kSockaddrIn, FI_SOCKADDR_IN);
SHOAL_OFI_IS(kSockaddrIn6, FI_SOCKADDR_IN6);
SHOAL_OFI_IS(kAddrStr, FI_ADDR_STR);
SHOAL_OFI_IS(kCqFormatData, FI_CQ_FORMAT_DATA);
SHOAL_OFI_IS(kWaitFd, FI_WAIT_FD);
SHOAL_OFI_IS(kGetWait, FI_GETWAIT);
SHOAL_OFI_IS(kEnable, FI_ENABLE);
SHOAL_OFI_IS(kTcDscp, FI_TC_DSCP);
SHOAL_OFI_IS(kErrorAvailable, FI_EAVAIL);
}  // namespace shoal::ofi
#endif

namespace shoal::ofi {
namespace {

constexpr const char* kName = "libfabric.so.1";
/// Bytes of a connection's message, 2 KiB, and its header. Without it an endpoint over `ofi_rxm` takes 70 MB for buffers; with it, 13 MB.
constexpr const char* kRxmBufferBytes[2] = {"FI_OFI_RXM_BUFFER_SIZE", "2304"};

struct Loaded {
  Api api;
  bool usable = false;
  char why[512] = "";
};

template <class T>
bool find(void* library, const char* name, [[maybe_unused]] const char* version, T& out) {
#ifdef __GLIBC__
  // The layouts are those of this version, whatever the newest is.
  void* symbol = dlvsym(library, name, version);
#else
  void* symbol = dlsym(library, name);
#endif
  static_assert(sizeof symbol == sizeof out, "functions and objects have addresses of one size");
  std::memcpy(&out, &symbol, sizeof out);
  return symbol != nullptr;
}

void load_into(Loaded& loaded) {
  // Some libraries that it loads install signal handlers while loading.
  const SignalGuard guard;
  void* library = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    std::snprintf(loaded.why, sizeof loaded.why, "%s cannot be loaded (%.400s)", kName, reason == nullptr ? "no reason given" : reason);
    return;
  }
  Api& api = loaded.api;
  loaded.usable = find(library, "fi_version", "FABRIC_1.0", api.version) && find(library, "fi_getinfo", "FABRIC_1.3", api.getinfo) &&
                  find(library, "fi_freeinfo", "FABRIC_1.3", api.freeinfo) && find(library, "fi_dupinfo", "FABRIC_1.3", api.dupinfo) &&
                  find(library, "fi_fabric", "FABRIC_1.1", api.fabric) && find(library, "fi_strerror", "FABRIC_1.0", api.strerror);
  if (!loaded.usable) {
    std::snprintf(loaded.why, sizeof loaded.why, "%s is older than 1.9: it lacks functions of its interface 1.3", kName);
  } else if (api.version() < kVersion) {
    loaded.usable = false;
    std::snprintf(loaded.why, sizeof loaded.why, "%s is version %u.%u; 1.9 or later is needed", kName, api.version() >> 16, api.version() & 0xffff);
  } else {
    // Providers read the environment once, at the first query.
    const bool own = std::getenv(kRxmBufferBytes[0]) == nullptr;
    if (own) setenv(kRxmBufferBytes[0], kRxmBufferBytes[1], 0);
    Info* none = nullptr;
    if (api.getinfo(kVersion, nullptr, nullptr, 0, nullptr, &none) == 0) api.freeinfo(none);
    if (own) unsetenv(kRxmBufferBytes[0]);
  }
}

}  // namespace

const Api* load(const char*& why) {
  static std::once_flag once;
  static Loaded loaded;
  std::call_once(once, [] { load_into(loaded); });
  why = loaded.why;
  return loaded.usable ? &loaded.api : nullptr;
}

}  // namespace shoal::ofi
