// Programs that run again and again under ascending numbers. The contract is in src/memory/step-machine.ts.
//
// A call of a function without arguments costs 9 ns. Whatever else a repeated operation does happens here, so that it is fast from the
// first time on, before the JavaScript around it has been compiled.
#include "repetition.h"

#include <cstring>
#include <memory>

#include "napi_args.h"
#include "regions.h"
#include "step_machine.h"

namespace shoal {
namespace {

/// Layout shared with src/memory/step-machine.ts (`RepetitionNumber`).
enum Number : size_t { kOrdinal, kClosed, kNumbers };

constexpr size_t kTurns = 2;
constexpr int32_t kNotStarted = 5;

/// A program of one turn. It is prepared when it runs on the same memory once more: a run on other memory each time costs no preparation.
struct TurnProgram {
  Program program;
  std::unique_ptr<PreparedProgram> prepared;
  uint64_t version = 0;

  Status run(Registers& registers) {
    if (program.segments->version == version) return prepared->run(registers);
    version = program.segments->version;
    return run_steps(program, registers);
  }
};

struct Repetition {
  TurnProgram programs[kTurns];
  Registers* registers;
  Doubles code;
  Words operands;
  Doubles numbers;
  Doubles runs;
  Words stop;
  Words record;
  Words log;
  double spin_ns;
  bool yields;
  uint64_t unmaps;
  napi_ref kept;
};

/// True when a sleeping peer must be rung: JavaScript does that.
bool rang(Registers& registers) {
  const uint32_t* words = registers.doorbells();
  for (size_t k = 0; k < registers.peer_limit() / 32; k++)
    if (words[k] != 0) return true;
  return false;
}

/// The function of a repetition: undefined when the program has run to its end and no peer must be rung, else a status, or kNotStarted.
napi_value start(napi_env env, napi_callback_info info) {
  void* data = nullptr;
  if (napi_get_cb_info(env, info, nullptr, nullptr, nullptr, &data) != napi_ok) return nullptr;
  auto& own = *static_cast<Repetition*>(data);
  double* numbers = own.numbers.data;
  int32_t status = kNotStarted;
  if (numbers[kClosed] == 0 && __atomic_load_n(own.stop.data, __ATOMIC_RELAXED) == 0 && own.unmaps == unmaps()) {
    const double runs = own.runs.data[0] + 1, ordinal = numbers[kOrdinal];
    own.runs.data[0] = runs;
    numbers[kOrdinal] = ordinal + 1;
    const auto serial = static_cast<uint32_t>(static_cast<uint64_t>(runs));
    uint32_t* record = own.record.data;
    const size_t words = own.record.size;
    uint32_t* entry = own.log.data + (static_cast<uint64_t>(runs) - 1) % (own.log.size / words) * words;
    record[0] = serial;
    entry[0] = 0;
    std::memcpy(entry + 1, record + 1, (words - 1) * sizeof(uint32_t));
    entry[0] = serial;
    for (size_t k = 0; k < own.operands.size; k++) own.code.data[own.operands.data[k]] = ordinal + 1;
    own.registers->pc() = 0;
    own.registers->wait(own.spin_ns, own.yields);
    status = static_cast<int32_t>(own.programs[static_cast<uint64_t>(ordinal) % kTurns].run(*own.registers));
    if (status == static_cast<int32_t>(Status::kDone) && !rang(*own.registers)) return nullptr;
  }
  napi_value result;
  return napi_create_int32(env, status, &result) == napi_ok ? result : nullptr;
}

bool read_operands(napi_env env, napi_value (&values)[13], Repetition& out) {
  Program* programs[kTurns];
  if (!get_external(env, values[0], programs[0]) || !get_external(env, values[1], programs[1]) || !get_external(env, values[2], out.registers) || !get(env, values[3], out.code) || !get(env, values[4], out.operands) ||
      !get(env, values[5], out.numbers) || !get(env, values[6], out.runs) || !get(env, values[7], out.stop) ||
      !get(env, values[8], out.record) || !get(env, values[9], out.log) || !get(env, values[10], out.spin_ns) ||
      !get(env, values[11], out.yields)) {
    return false;
  }
  for (size_t k = 0; k < kTurns; k++) out.programs[k] = {*programs[k], std::make_unique<PreparedProgram>(*programs[k], out.registers->peer_limit())};
  for (size_t k = 0; k < out.operands.size; k++)
    if (out.operands.data[k] >= out.code.size) return false;
  return out.numbers.size == kNumbers && out.runs.size == 1 && out.stop.size == 1 && out.record.size > 1 &&
         out.log.size >= out.record.size;
}

/// createRepetition(program, program, registers, code, operands, numbers, runs, stop, record, log, spinNs, yields, kept): a function
napi_value create_repetition(napi_env env, napi_callback_info info) {
  napi_value values[13], function;
  auto own = std::make_unique<Repetition>();
  if (!arguments(env, info, values) || !read_operands(env, values, *own)) return fail_arguments(env);
  own->unmaps = unmaps();
  const auto finalize = [](napi_env of, void* data, void*) {
    auto* repetition = static_cast<Repetition*>(data);
    napi_delete_reference(of, repetition->kept);
    delete repetition;
  };
  if (napi_create_reference(env, values[12], 1, &own->kept) != napi_ok) return fail(env, "EINVAL", "napi_create_reference failed");
  if (napi_create_function(env, "repetition", NAPI_AUTO_LENGTH, start, own.get(), &function) != napi_ok ||
      napi_wrap(env, function, own.get(), finalize, nullptr, nullptr) != napi_ok) {
    napi_delete_reference(env, own->kept);
    return fail(env, "EINVAL", "napi_create_function failed");
  }
  own.release();
  return function;
}

}  // namespace

void export_repetition(napi_env env, napi_value exports) { set_function(env, exports, "createRepetition", create_repetition); }

}  // namespace shoal
