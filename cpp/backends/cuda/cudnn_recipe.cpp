#include "backends/cuda/cudnn_recipe.hpp"

#include <algorithm>
#include <unordered_map>

#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

using cudnn::Map;
using cudnn::Tensor;

/// What the tensors of one kernel are: images, a number for each channel, or one number.
enum class Level : std::uint8_t { kImages, kChannels, kOne };

constexpr std::int64_t kChannelsAtATime = 8;  ///< in 16 bytes of a half type

std::optional<Map> map_of(Op op) {
  switch (op) {
    case Op::add:
      return Map::kAdd;
    case Op::subtract:
      return Map::kSubtract;
    case Op::multiply:
    case Op::square:
      return Map::kMultiply;
    case Op::divide:
      return Map::kDivide;
    case Op::negative:
      return Map::kNegative;
    case Op::absolute:
      return Map::kAbsolute;
    case Op::reciprocal:
      return Map::kReciprocal;
    case Op::sqrt:
      return Map::kSquareRoot;
    case Op::rsqrt:
      return Map::kRsqrt;
    case Op::exp:
      return Map::kExp;
    case Op::log:
      return Map::kLog;
    case Op::tanh:
      return Map::kTanh;
    case Op::erf:
      return Map::kErf;
    case Op::floor:
      return Map::kFloor;
    case Op::ceil:
      return Map::kCeil;
    case Op::relu:
      return Map::kRelu;
    case Op::sigmoid:
      return Map::kSigmoid;
    default:
      return std::nullopt;
  }
}

bool is_same_value(const Node& n) {
  return n.op == Op::positive ||
         (n.op == Op::cast && !(std::get<CastAttributes>(n.attributes).rounds && is_half(n.dtype)));
}

/// The strides of an array that is read as images are; nothing where it is no such array.
bool is_image(const Access& a) {
  for (std::size_t i = 0; i < a.shape.size(); ++i)
    if (a.shape[i] > 1 && a.strides[i] <= 0) return false;
  return a.shape.size() == 4 && a.offset >= 0 && !a.has_positions();
}

class Translator {
 public:
  Translator(const Candidate& k, std::string& why) : k_(k), why_(why) {}

  std::optional<ConvolutionRecipe> run() {
    if (!begin()) return std::nullopt;
    for (const NodeId n : k_.nodes) {
      const bool done = n == convolution_ ? add_convolution() : add(n);
      if (!done) return std::nullopt;
    }
    if (!store()) return std::nullopt;
    return std::move(result_);
  }

 private:
  const Node& node(NodeId n) const { return k_.graph[n]; }
  const std::vector<Access>& reads(NodeId n) const { return k_.folded.work[static_cast<std::size_t>(n)].reads; }
  cudnn::Recipe& recipe() { return result_.recipe; }
  bool no(std::string why) {
    why_ = std::move(why);
    return false;
  }

  bool begin() {
    const auto is_convolution = [&](NodeId n) { return node(n).op == Op::conv2d; };
    convolution_ = *std::ranges::find_if(k_.nodes, is_convolution);
    if (std::ranges::count_if(k_.nodes, is_convolution) != 1) return no("computes one convolution");
    const Node& c = node(convolution_);
    shape_ = c.shape;
    if (!is_half(c.dtype)) return no("computes convolutions of half types");
    if (std::get<Conv2dAttributes>(c.attributes).groups != 1) return no("computes convolutions of one group");
    for (const Access& a : reads(convolution_)) {
      if (node(a.base).dtype != c.dtype) return no("takes images and weights of one type");
      if (!is_image(a)) return no("takes images and weights that are arrays, whose strides are positive");
      if (a.shape[1] % kChannelsAtATime != 0) return no("takes images whose channels are a multiple of 8");
    }
    if (shape_[1] % kChannelsAtATime != 0) return no("makes images whose channels are a multiple of 8");
    if (c.size() == shape_[1] || c.size() == 0) return no("makes images of several pixels");
    if (k_.stores.size() != 1) return no("stores one result");
    return true;
  }

  int tensor(Tensor t) {
    recipe().tensors.push_back(std::move(t));
    return static_cast<int>(recipe().tensors.size()) - 1;
  }
  Extents extents_of(Level level) const {
    const std::int64_t channels = level == Level::kOne ? 1 : shape_[1];
    return level == Level::kImages ? shape_ : Extents{1, channels, 1, 1};
  }
  int between(Level level) {
    const Extents extents = extents_of(level);
    return tensor({Tensor::Of::kBetween, DType::kFloat32, extents, channels_last(extents)});
  }
  int read(const Access& a, const Extents& extents, bool image) {
    const DType dtype = node(a.base).dtype;
    const auto same = [&](const RecipeData& d) {
      return !d.is_number && d.access == a && recipe().tensors[static_cast<std::size_t>(d.tensor)].extents == extents;
    };
    if (const auto known = std::ranges::find_if(result_.reads, same); known != result_.reads.end())
      return known->tensor;
    const int t = tensor({Tensor::Of::kArray, dtype, extents, channels_last(extents)});
    result_.reads.push_back({t, dtype, a, image});
    return t;
  }

  bool add_convolution() {
    const Access &x = reads(convolution_)[0], &w = reads(convolution_)[1];
    cudnn::Operation o;
    o.is_convolution = true;
    o.window = std::get<Conv2dAttributes>(node(convolution_).attributes);
    o.x = read(x, x.shape, true), o.y = read(w, w.shape, true), o.result = between(Level::kImages);
    recipe().operations.push_back(o);
    made_[convolution_] = {Level::kImages, o.result};
    return true;
  }

  bool add(NodeId n) {
    const Node& m = node(n);
    const Work& work = k_.folded.work[static_cast<std::size_t>(n)];
    if (work.kind != WorkKind::kPointwise || !is_float(m.dtype) || m.dtype == DType::kFloat64)
      return no("computes maps of half types and of float32");
    const auto level = level_of(work.shape);
    if (!level) return no("computes maps of images, of channels and of numbers");
    std::vector<int> arguments;
    for (const Access& a : work.reads) {
      const auto t = argument(a, *level);
      if (!t) return false;
      arguments.push_back(*t);
    }
    if (is_same_value(m)) return made_[n] = {*level, arguments[0]}, true;
    const auto map = map_of(m.op);
    if (!map) return no("computes no " + std::string(info(m.op).name));
    if (m.op == Op::square) arguments.push_back(arguments[0]);
    cudnn::Operation o;
    o.map = *map, o.x = arguments[0], o.y = arguments.size() > 1 ? arguments[1] : -1, o.result = between(*level);
    recipe().operations.push_back(o);
    made_[n] = {*level, o.result};
    return true;
  }

  std::optional<Level> level_of(const Extents& shape) const {
    if (shape == shape_) return Level::kImages;
    if (product(shape) == 1) return Level::kOne;
    const bool along_channels =
        shape.size() <= 4 && product(shape) == shape_[1] && std::ranges::count(shape, 1) + 1 == std::ssize(shape);
    return along_channels ? std::optional(Level::kChannels) : std::nullopt;
  }

  /// Along which elements a reader of `level` goes by the access; nothing where along others than those of a level.
  std::optional<Level> level_seen(const Access& a, Level reader) const {
    if (std::ranges::all_of(a.strides, [](std::int64_t s) { return s == 0; }) || product(a.shape) == 1)
      return Level::kOne;
    if (reader == Level::kChannels) return Level::kChannels;
    const auto still = [&](std::size_t i) { return a.shape[i] == 1 || a.strides[i] == 0; };
    if (still(0) && still(2) && still(3)) return Level::kChannels;
    return is_image(a) ? std::optional(Level::kImages) : std::nullopt;
  }

  std::optional<int> argument(const Access& a, Level reader) {
    const auto refuse = [&](const char* why) { return no(why), std::nullopt; };
    const Node& from = node(a.base);
    if (a.has_positions()) return refuse("takes no elements at positions");
    if (from.op == Op::constant && is_float(from.dtype)) return number(std::get<ConstantAttributes>(from.attributes));
    const auto level = level_seen(a, reader);
    if (!level) return refuse("takes other arrays of images, of channels and of numbers");
    if (*level == Level::kChannels && step_of(a) != 1) return refuse("takes numbers of channels that lie together");
    if (!k_.computes(a.base)) {
      if (from.op == Op::iota || from.op == Op::constant || !is_float(from.dtype) || from.dtype == DType::kFloat64)
        return refuse("takes arrays of half types and of float32");
      return *level == Level::kImages ? read(a, a.shape, true) : read(a, extents_of(*level), false);
    }
    const Made& made = made_.at(a.base);
    if (made.level != *level || a.offset != 0 || (*level == Level::kImages && !is_identity(a)))
      return refuse("computes maps of what lies as it does itself");
    return made.tensor;
  }

  /// The stride along the access's axis that varies.
  static std::int64_t step_of(const Access& a) {
    for (std::size_t i = 0; i < a.shape.size(); ++i)
      if (a.shape[i] > 1 && a.strides[i] != 0) return a.strides[i];
    return 1;
  }

  std::optional<int> number(const ConstantAttributes& c) {
    if (c.parameter >= 0) return no("takes no numbers that come with a call"), std::nullopt;
    const int t = tensor({Tensor::Of::kNumber, DType::kFloat32, {1, 1, 1, 1}, {1, 1, 1, 1}});
    result_.reads.push_back({t, DType::kFloat32, {}, false, true, static_cast<float>(c.value)});
    return t;
  }

  /// The tensor that the last operation makes becomes an array.
  bool store() {
    const NodeId stored = k_.stores[0];
    const Made& made = made_.at(stored);
    const bool is_last = recipe().operations.back().result == made.tensor;
    const auto reads_it = [&](const cudnn::Operation& o) { return o.x == made.tensor || o.y == made.tensor; };
    if (made.level != Level::kImages || !is_last || std::ranges::any_of(recipe().operations, reads_it))
      return no("stores its last result");
    if (k_.folded.parts.contains(stored) || is_part(stored)) return no("stores no part of a concatenation");
    Tensor& t = recipe().tensors[static_cast<std::size_t>(made.tensor)];
    t.of = Tensor::Of::kArray, t.dtype = node(stored).dtype;
    result_.result = made.tensor;
    return true;
  }
  bool is_part(NodeId n) const {
    return std::ranges::any_of(
        k_.folded.parts, [&](const auto& join) { return std::ranges::find(join.second, n) != join.second.end(); });
  }

  struct Made {
    Level level;
    int tensor;
  };
  const Candidate& k_;
  std::string& why_;
  ConvolutionRecipe result_;
  NodeId convolution_ = 0;
  Extents shape_;  ///< of the convolution's result
  std::unordered_map<NodeId, Made> made_;
};

}  // namespace

std::optional<ConvolutionRecipe> convolution_recipe(const Candidate& kernel, std::string& why) {
  return Translator(kernel, why).run();
}

}  // namespace kfusion
