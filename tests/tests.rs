//! Whole runs through the binary, in scratch folders, without network.

#![expect(clippy::unwrap_used, reason = "tests")]

// Runs the binary and keeps what it said.
mod harness;

// Usage and configuration: code 2.
mod usage;

// Rows that cannot be used: code 3, and nothing half-written.
mod rows;

// Small files that unpack to more than memory.
mod bombs;

// What newcomers get wrong and strangers send: one error line, the right code, nothing half-written.
mod bad_inputs;

// A pipeline looks at the inputs of all stages before it starts.
mod preflight;

// A model from nothing, and the commands that run one.
mod inference;

// Several replies to a prompt: the best one, and rows of the good ones.
mod best_of;

// A server with models, for the tests of this process.
mod chat_server;

// Evaluations: results, resuming, bounds, wrong input.
mod eval;

// Programs of a model that run when a signal arrives.
mod sandbox;

// Judges: ratings, comparisons, servers that fail.
mod judge;

// The report of a reward model.
mod eval_rm;

// The chat: in a pipe, and on a real screen.
mod chat;

// A chat with a model of a server.
mod endpoint;

// Models behind a server of this program.
mod serve;

// What a machine must have.
mod doctor;

// Hardware that is not this machine, and the fastest layouts.
mod plan;

// What ranks send, as the planner says and as they count.
mod communication;

// Learning from given completions: meshes, budgets, resuming, references.
mod offline;
mod online;

// Learning from a teacher.
mod distill;

// Learning from groups of replies: every algorithm, mesh and budget, resuming, environments.
mod groups;
// Rewards that programs and servers of the user give: failures, and what is left of them.
mod verifiers;

// Training through the binary: a pipeline, resuming, Ctrl-C, and what goes wrong.
mod training;

// Feedback becomes rows to train on.
mod feedback;

// A first run file, and the program without arguments.
mod init;

// Every stage and command on a device that is not the CPU.
mod device;

// NCCL on a GPU.
mod nccl;

// Models under a budget of memory.
mod gemini;

// Tensors are placed on purpose.
mod source;

// The files of a crate use one another in no circle.
mod circles;

// Folders and files: whose they are, who holds them, and what is left after a signal, a fault or a full disk.
mod folders;

// What others have put into the folders of this program: refused, and left as it is.
mod ownership;

// Several processes: the same numbers as one, and a clear end when one of them fails.
mod ranks;

// State that is divided over the data-parallel processes.
mod zero;

// Copies of a weight on several processes have the same bits.
mod replicas;

// Runs that are watched, and the commands over run folders.
mod watch;

// Adapters on frozen models.
mod lora;

// Several adapters on one model that answers.
mod adapters;
// Adapters that begin with a part of the weights of their model.
mod init_adapter;
// Rows of single tokens beside adapters.
mod token_rows;

// Weights in codes, in every command that runs a model.
mod quantize;
// Model folders in codes: made, trained on, run, made numbers again.
mod quantized_folders;

// Models as files of llama.cpp.
mod gguf;
