// Matrix products and an LSTM layer of oneDNN as functions that XLA calls. See foreign.py.

#include <cstring>
#include <map>
#include <tuple>

#include "oneapi/dnnl/dnnl.hpp"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;
using Result = ffi::ResultBuffer<ffi::F32>;
using dnnl::memory;
using Tag = memory::format_tag;

namespace {

dnnl::engine& Cpu() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

memory::desc Desc(memory::dims dims, Tag tag) {
  return memory::desc(std::move(dims), memory::data_type::f32, tag);
}

// oneDNN's own scratchpads belong to the thread that created a primitive, and XLA calls from any of
// its threads. These calls never overlap, because the programs of foreign.py make one at a time.
dnnl::primitive_attr OwnScratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

// The two primitives for inputs (length, rows, inputs) and a state of `width`.
struct Layer {
  Layer(int64_t length, int64_t rows, int64_t inputs, int64_t width)
      : x(Desc({length, rows, inputs}, Tag::tnc)),
        y(Desc({length, rows, width}, Tag::tnc)),
        state(Desc({1, 1, rows, width}, Tag::ldnc)),
        from_input(Desc({1, 1, inputs, 4, width}, Tag::ldigo)),
        from_state(Desc({1, 1, width, 4, width}, Tag::ldigo)),
        bias(Desc({1, 1, 4, width}, Tag::ldgo)) {
    auto any_input = Desc({1, 1, inputs, 4, width}, Tag::any);
    auto any_state = Desc({1, 1, width, 4, width}, Tag::any);
    auto direction = dnnl::rnn_direction::unidirectional_left2right;
    forward = dnnl::lstm_forward::primitive_desc(
        Cpu(), dnnl::prop_kind::forward_training, direction, x, state, state, any_input, any_state,
        bias, y, state, state, OwnScratchpad());
    backward = dnnl::lstm_backward::primitive_desc(
        Cpu(), dnnl::prop_kind::backward, direction, x, state, state, any_input, any_state, bias, y,
        state, state, x, state, state, from_input, from_state, bias, y, state, state, forward,
        OwnScratchpad());
    run_forward = dnnl::lstm_forward(forward);
    run_backward = dnnl::lstm_backward(backward);
    forward_scratchpad = memory(forward.scratchpad_desc(), Cpu());
    backward_scratchpad = memory(backward.scratchpad_desc(), Cpu());
  }

  memory::desc x, y, state, from_input, from_state, bias;
  dnnl::lstm_forward::primitive_desc forward;
  dnnl::lstm_backward::primitive_desc backward;
  dnnl::lstm_forward run_forward;
  dnnl::lstm_backward run_backward;
  memory forward_scratchpad, backward_scratchpad;
};

Layer& LayerOf(int64_t length, int64_t rows, int64_t inputs, int64_t width) {
  static std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, Layer> layers;
  auto key = std::make_tuple(length, rows, inputs, width);
  auto found = layers.find(key);
  if (found == layers.end())
    found = layers.emplace(key, Layer(length, rows, inputs, width)).first;
  return found->second;
}

memory Held(const memory::desc& desc, void* data) { return memory(desc, Cpu(), data); }

memory Held(const memory::desc& desc, const Floats& buffer) {
  return Held(desc, const_cast<float*>(buffer.typed_data()));
}

memory Held(const memory::desc& desc, Result& buffer) { return Held(desc, buffer->typed_data()); }

// Returns a matrix in the layout that the primitive prefers.
memory Arranged(const memory::desc& wanted, memory given, dnnl::stream& stream) {
  if (wanted == given.get_desc()) return given;
  memory copy(wanted, Cpu());
  dnnl::reorder(given, copy).execute(stream, given, copy);
  return copy;
}

ffi::Error Forward(Floats x, Floats h, Floats c, Floats from_input, Floats from_state, Floats bias,
                   Result y, Result last_h, Result last_c, ffi::ResultBuffer<ffi::U8> workspace) {
  auto sizes = x.dimensions();
  Layer& layer = LayerOf(sizes[0], sizes[1], sizes[2], h.dimensions()[1]);
  dnnl::stream stream(Cpu());
  layer.run_forward.execute(
      stream,
      {{DNNL_ARG_SCRATCHPAD, layer.forward_scratchpad},
       {DNNL_ARG_SRC_LAYER, Held(layer.x, x)},
       {DNNL_ARG_SRC_ITER, Held(layer.state, h)},
       {DNNL_ARG_SRC_ITER_C, Held(layer.state, c)},
       {DNNL_ARG_WEIGHTS_LAYER, Arranged(layer.forward.weights_layer_desc(),
                                         Held(layer.from_input, from_input), stream)},
       {DNNL_ARG_WEIGHTS_ITER, Arranged(layer.forward.weights_iter_desc(),
                                        Held(layer.from_state, from_state), stream)},
       {DNNL_ARG_BIAS, Held(layer.bias, bias)},
       {DNNL_ARG_DST_LAYER, Held(layer.y, y)},
       {DNNL_ARG_DST_ITER, Held(layer.state, last_h)},
       {DNNL_ARG_DST_ITER_C, Held(layer.state, last_c)},
       {DNNL_ARG_WORKSPACE, Held(layer.forward.workspace_desc(), workspace->typed_data())}});
  stream.wait();
  return ffi::Error::Success();
}

ffi::Error Backward(Floats x, Floats h, Floats c, Floats from_input, Floats from_state, Floats bias,
                    Floats y, Floats last_h, Floats last_c, ffi::Buffer<ffi::U8> workspace,
                    Floats d_y, Floats d_last_h, Floats d_last_c, Result d_x, Result d_h,
                    Result d_c, Result d_from_input, Result d_from_state, Result d_bias) {
  auto sizes = x.dimensions();
  Layer& layer = LayerOf(sizes[0], sizes[1], sizes[2], h.dimensions()[1]);
  dnnl::stream stream(Cpu());
  // The gradients of the weights are added to what is there.
  for (Result* result : {&d_from_input, &d_from_state, &d_bias})
    std::memset((*result)->typed_data(), 0, (*result)->size_bytes());
  layer.run_backward.execute(
      stream,
      {{DNNL_ARG_SCRATCHPAD, layer.backward_scratchpad},
       {DNNL_ARG_SRC_LAYER, Held(layer.x, x)},
       {DNNL_ARG_SRC_ITER, Held(layer.state, h)},
       {DNNL_ARG_SRC_ITER_C, Held(layer.state, c)},
       {DNNL_ARG_WEIGHTS_LAYER, Arranged(layer.backward.weights_layer_desc(),
                                         Held(layer.from_input, from_input), stream)},
       {DNNL_ARG_WEIGHTS_ITER, Arranged(layer.backward.weights_iter_desc(),
                                        Held(layer.from_state, from_state), stream)},
       {DNNL_ARG_BIAS, Held(layer.bias, bias)},
       {DNNL_ARG_DST_LAYER, Held(layer.y, y)},
       {DNNL_ARG_DST_ITER, Held(layer.state, last_h)},
       {DNNL_ARG_DST_ITER_C, Held(layer.state, last_c)},
       {DNNL_ARG_WORKSPACE, Held(layer.forward.workspace_desc(), workspace.typed_data())},
       {DNNL_ARG_DIFF_DST_LAYER, Held(layer.y, d_y)},
       {DNNL_ARG_DIFF_DST_ITER, Held(layer.state, d_last_h)},
       {DNNL_ARG_DIFF_DST_ITER_C, Held(layer.state, d_last_c)},
       {DNNL_ARG_DIFF_SRC_LAYER, Held(layer.x, d_x)},
       {DNNL_ARG_DIFF_SRC_ITER, Held(layer.state, d_h)},
       {DNNL_ARG_DIFF_SRC_ITER_C, Held(layer.state, d_c)},
       {DNNL_ARG_DIFF_WEIGHTS_LAYER, Held(layer.from_input, d_from_input)},
       {DNNL_ARG_DIFF_WEIGHTS_ITER, Held(layer.from_state, d_from_state)},
       {DNNL_ARG_DIFF_BIAS, Held(layer.bias, d_bias)}});
  stream.wait();
  return ffi::Error::Success();
}

// The primitive of a product (m, k) (k, n), whose factors may be stored transposed.
struct Multiply {
  Multiply(int64_t m, int64_t k, int64_t n, bool x_transposed, bool w_transposed)
      : x(Desc({m, k}, x_transposed ? Tag::ba : Tag::ab)),
        w(Desc({k, n}, w_transposed ? Tag::ba : Tag::ab)),
        y(Desc({m, n}, Tag::ab)) {
    dnnl::matmul::primitive_desc described(Cpu(), x, w, y, OwnScratchpad());
    run = dnnl::matmul(described);
    scratchpad = memory(described.scratchpad_desc(), Cpu());
  }

  memory::desc x, w, y;
  dnnl::matmul run;
  memory scratchpad;
};

ffi::Error Product(Floats x, Floats w, Result y, bool x_transposed, bool w_transposed) {
  static std::map<std::tuple<int64_t, int64_t, int64_t, bool, bool>, Multiply> primitives;
  int64_t m = y->dimensions()[0], n = y->dimensions()[1];
  int64_t k = x.dimensions()[x_transposed ? 0 : 1];
  auto key = std::make_tuple(m, k, n, x_transposed, w_transposed);
  auto found = primitives.find(key);
  if (found == primitives.end())
    found = primitives.emplace(key, Multiply(m, k, n, x_transposed, w_transposed)).first;
  Multiply& multiply = found->second;
  dnnl::stream stream(Cpu());
  multiply.run.execute(stream, {{DNNL_ARG_SCRATCHPAD, multiply.scratchpad},
                                {DNNL_ARG_SRC, Held(multiply.x, x)},
                                {DNNL_ARG_WEIGHTS, Held(multiply.w, w)},
                                {DNNL_ARG_DST, Held(multiply.y, y)}});
  stream.wait();
  return ffi::Error::Success();
}

}  // namespace

extern "C" int64_t WorkspaceBytes(int64_t length, int64_t rows, int64_t inputs, int64_t width) {
  return LayerOf(length, rows, inputs, width).forward.workspace_desc().get_size();
}

// clang-format off
XLA_FFI_DEFINE_HANDLER_SYMBOL(OneDnnProduct, Product, ffi::Ffi::Bind()
    .Arg<Floats>().Arg<Floats>().Ret<Floats>()
    .Attr<bool>("x_transposed").Attr<bool>("w_transposed"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(LstmForward, Forward, ffi::Ffi::Bind()
    .Arg<Floats>().Arg<Floats>().Arg<Floats>().Arg<Floats>().Arg<Floats>().Arg<Floats>()
    .Ret<Floats>().Ret<Floats>().Ret<Floats>().Ret<ffi::Buffer<ffi::U8>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(LstmBackward, Backward, ffi::Ffi::Bind()
    .Arg<Floats>().Arg<Floats>().Arg<Floats>().Arg<Floats>().Arg<Floats>().Arg<Floats>()
    .Arg<Floats>().Arg<Floats>().Arg<Floats>().Arg<ffi::Buffer<ffi::U8>>()
    .Arg<Floats>().Arg<Floats>().Arg<Floats>()
    .Ret<Floats>().Ret<Floats>().Ret<Floats>().Ret<Floats>().Ret<Floats>().Ret<Floats>());
