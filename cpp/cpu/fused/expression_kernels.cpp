// The expressions that are loops: those of gradients of normalisations and losses.
#include "cpu/fused/expression_loops.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

template <class X, class Y>
using Product = Combined<Op::multiply, X, Y>;
template <class X, class Y>
using Sum = Combined<Op::add, X, Y>;
template <class X, class Y>
using Difference = Combined<Op::subtract, X, Y>;

// x is array 0, the gradient array 1, weights array 2.
using X = Row<0>;
using G = Row<1>;
template <class Input, int k>
using FromCentre = Difference<Input, Number<k>>;
template <int k>
using Exponential = Mapped<Op::exp, FromCentre<X, k>>;

template <class E, DType dtype>
class Forms {
 public:
  Forms(const Expression& e, DType to) : e_(e), to_(to) {}

  RowLoop sum() {
    using Rectified = Mapped<Op::relu, X>;
    products<X>() || products<Rectified>() || sums<Product<X, Own<2>>>() || sums<Product<Own<0>, G>>();
    l_.divides = !found() && sums<Product<Quotient<Own<0>>, G>>();
    return l_;
  }

  RowLoop store() {
    stores<X>() || norms<X>() || norms<Mapped<Op::relu, X>>() ||
        // batch norm of an image's channel
        stores<Sum<Number<0>, Product<Number<1>, Product<FromCentre<X, 2>, Number<3>>>>>();
    found() || exponentials<Own<0>>() || exponentials<Exponential<4>>() ||
        stores<Product<Own<0>, Difference<G, Number<0>>>>() || stores<Product<X, Difference<G, Number<0>>>>();
    l_.divides = !found() && (stores<Quotient<X>>() || stores<Quotient<Exponential<1>>>() ||
                              stores<Product<Quotient<Own<0>>, Difference<G, Number<1>>>>());
    return l_;
  }

 private:
  using T = typename E::Compute;
  static constexpr bool kHalf = kItem<E> < static_cast<int>(sizeof(T));

  bool found() const { return l_.run != nullptr; }

  template <class Form>
  bool fits() {
    Match m(e_, dtype);
    if (!Form::is(m, e_.count - 1)) return false;
    for (int k = 0; k < kFormArrays; ++k) l_.arrays[k] = m.arrays[k];
    for (int k = 0; k < kFormNumbers; ++k) l_.numbers[k] = m.numbers[k];
    l_.place_bytes = m.place_bytes;
    return true;
  }
  template <class Form>
  bool sums() {
    if (!fits<Form>()) return false;
    l_.run = sum_form<E, Form>;
    l_.folds = true;
    return true;
  }
  template <class Form>
  bool stores() {
    if (!fits<Form>()) return false;
    if (to_ == dtype) l_.run = store_form<E, E, Form>;
    if constexpr (kHalf)
      if (to_ == DType::kFloat32) l_.run = store_form<E, Float32, Form>;
    return found();
  }
  /// Gradients of rows that are normalised, from what is `Input`.
  template <class Input>
  bool norms() {
    return gradients<Input, Product<G, Own<2>>>() || gradients<Input, G>() ||
           stores<Product<G, Product<Input, Number<0>>>>() ||
           stores<Product<G, Product<FromCentre<Input, 0>, Number<1>>>>();
  }
  template <class Input, class Given>
  bool gradients() {
    using OfGiven = Product<Number<0>, Given>;
    using Whole = Sum<Sum<OfGiven, Product<FromCentre<Input, 1>, Number<2>>>, Number<3>>;
    return stores<Sum<OfGiven, Product<Input, Number<1>>>>() || stores<Whole>() || stores<Above<Input, 4, Whole>>();
  }
  template <class Input>
  bool products() {
    using Weighted = Product<G, Own<2>>;
    return sums<Product<Input, G>>() || sums<Product<Input, Weighted>>() ||
           sums<Product<FromCentre<Input, 0>, Weighted>>() || sums<Product<FromCentre<Input, 0>, G>>() ||
           sums<Product<Number<0>, Weighted>>();
  }
  /// Gradients of logarithms of softmax, of what exponentials come as.
  template <class Exponentials>
  bool exponentials() {
    using Part = Product<Exponentials, Number<3>>;
    if (stores<Sum<G, Part>>()) return true;
    l_.places = stores<Sum<Placed<0, 1, 2>, Part>>();
    return l_.places;
  }

  const Expression& e_;
  DType to_;
  RowLoop l_;
};

template <class F>
RowLoop of_elements(DType elements, const F& f) {
  switch (elements) {
    case DType::kFloat32:
      return f.template operator()<Float32, DType::kFloat32>();
    case DType::kFloat16:
      return f.template operator()<Float16, DType::kFloat16>();
    case DType::kBFloat16:
      return f.template operator()<BFloat16, DType::kBFloat16>();
    default:
      return {};
  }
}

}  // namespace

RowLoop sum_loop(const Expression& e, DType elements) {
  return of_elements(elements, [&]<class E, DType dtype>() { return Forms<E, dtype>(e, dtype).sum(); });
}

RowLoop store_loop(const Expression& e, DType elements, DType to) {
  return of_elements(elements, [&]<class E, DType dtype>() { return Forms<E, dtype>(e, to).store(); });
}

}  // namespace KF_ISA
}  // namespace kfusion::cpu
