#include "tools/ctl/command.h"

namespace ballast::tools {

const std::vector<Command>& AllCommands() {
  static const auto* const commands = [] {
    auto* all = new std::vector<Command>;
    for (const auto list : {StatusCommands, ClusterCommands, JobCommands, TenantCommands,
                            ReloadCommands, SnapshotCommands, ExchangeCommands, HostCommands,
                            ConfigCommands, TuneCommands, DsCommands, CompletionCommands}) {
      for (const Command& command : list()) all->push_back(command);
    }
    return all;
  }();
  return *commands;
}

const std::vector<Flag>& AllFlags() {
  static const auto* const flags = new std::vector<Flag>{
      {"--force", "", &Options::force,
       "also while trainers are attached; they end with JOB_FAILED"},
      {"--keep", "N", &Options::keep, "remove the job's oldest snapshots until N are left"},
      {"--tenant", "NAME", &Options::tenant,
       "whose, for an admin (default: default; of lists: all); others have their own only"},
      {"--as", "NEW", &Options::as, "name of the new job"},
      {"--world", "N", &Options::world, "the new job's number of trainers (default: as it was)"},
      {"--snapshot", "NAME", &Options::snapshot,
       "that snapshot of the job (default: its present state)"},
      {"--name", "EXPORT", &Options::name, "name of the directory (default: JOB and the time)"},
      {"--dtype", "native|fp32|bf16|fp16", &Options::dtype,
       "of the weights (default: native, each tensor's own)"},
      {"--state", "", &Options::state, "optimizer state, too, so that an import continues the job"},
      {"--consolidated", "", &Options::consolidated,
       "one file, written by one server, in place of one per server"},
      {"--format", "safetensors|deepspeed-universal", &Options::format,
       "a checkpoint that DeepSpeed loads has all state (default: safetensors)"},
      {"--torch-optimizer", "", &Options::torch_optimizer,
       "with --format deepspeed-universal: for an optimizer of torch, not one of DeepSpeed"},
      {"--config", "FILE", &Options::config, "of ballastd; BALLAST_* variables count, too"},
      {"--trainers", "N", &Options::trainers, "how many push gradients (default: 1)"},
      {"--servers", "N", &Options::servers, "how many share the state (default: 1)"},
      {"--optimizer", "NAME", &Options::optimizer, "such as AdamW, SGD, Lion (default: AdamW)"},
      {"--collective", "", &Options::collective,
       "trainers sum the gradients among them: what that takes, too"},
      {"--last", "N", &Options::last, "so many rounds (default: 10; servers keep 64)"},
      {"--watch", "", &Options::watch, "show it again and again, on a terminal"},
      {"--every", "N", &Options::every_s, "so many seconds between two of --watch (default: 2)"},
  };
  return *flags;
}

const std::vector<Flag>& SecurityFlags() {
  static const auto* const flags = new std::vector<Flag>{
      {"--tls-ca", "FILE", &Options::tls_ca,
       "authorities of the servers (default: BALLAST_TLS_CA)"},
      {"--tls-cert", "FILE", &Options::tls_cert, "your certificate (default: BALLAST_TLS_CERT)"},
      {"--tls-key", "FILE", &Options::tls_key, "its key (default: BALLAST_TLS_KEY)"},
      {"--token-file", "FILE", &Options::token_file,
       "a bearer token, over TLS only (default: BALLAST_TOKEN_FILE)"},
  };
  return *flags;
}

const Flag* FindFlag(const std::string& name) {
  for (const auto list : {AllFlags, SecurityFlags}) {
    for (const Flag& flag : list()) {
      if (name == flag.name) return &flag;
    }
  }
  return nullptr;
}

}  // namespace ballast::tools
