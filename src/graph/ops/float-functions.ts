/** Functions of one float, element by element, that programs add by `g.node`. */
export const floatFunctions =
  'Floor Ceil Round Reciprocal Log1p Expm1 Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Erf Elu Selu Relu6'.split(' ');
