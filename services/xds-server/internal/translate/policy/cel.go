package policy

import (
	exprv1 "google.golang.org/genproto/googleapis/api/expr/v1alpha1"

	"fairlead.dev/pkg/authz"
)

// headerCondition is the CEL expression that is true if all header matches are; nil for none. In CEL a header that was
// sent several times is one value, joined by commas, as AuthorizationPolicy says; Envoy's header matchers take them one
// by one, so that a second header would dodge a rule of notValues.
func headerCondition(matches []authz.Match) *exprv1.Expr {
	var e expressions
	var all *exprv1.Expr
	for _, m := range matches {
		all = e.joined("_&&_", all, e.header(m))
	}
	return all
}

// expressions makes the nodes of one CEL expression, each with an ID of its own.
type expressions struct{ last int64 }

func (e *expressions) node(n *exprv1.Expr) *exprv1.Expr {
	e.last++
	n.Id = e.last
	return n
}

func (e *expressions) text(s string) *exprv1.Expr {
	return e.node(&exprv1.Expr{ExprKind: &exprv1.Expr_ConstExpr{ConstExpr: &exprv1.Constant{
		ConstantKind: &exprv1.Constant_StringValue{StringValue: s},
	}}})
}

func (e *expressions) call(function string, target *exprv1.Expr, args ...*exprv1.Expr) *exprv1.Expr {
	return e.node(&exprv1.Expr{ExprKind: &exprv1.Expr_CallExpr{CallExpr: &exprv1.Expr_Call{Target: target, Function: function, Args: args}}})
}

func (e *expressions) joined(operator string, a, b *exprv1.Expr) *exprv1.Expr {
	if a == nil {
		return b
	}
	return e.call(operator, nil, a, b)
}

// headers is request.headers.
func (e *expressions) headers() *exprv1.Expr {
	request := e.node(&exprv1.Expr{ExprKind: &exprv1.Expr_IdentExpr{IdentExpr: &exprv1.Expr_Ident{Name: "request"}}})
	return e.node(&exprv1.Expr{ExprKind: &exprv1.Expr_SelectExpr{SelectExpr: &exprv1.Expr_Select{Operand: request, Field: "headers"}}})
}

// header is true if the header is there and one of the values matches, or with Not the opposite. An expression that
// reads a missing header would be an error, and the rule would not match.
func (e *expressions) header(m authz.Match) *exprv1.Expr {
	name := m.Key[0]
	there := e.call("@in", nil, e.text(name), e.headers())
	var some *exprv1.Expr
	for _, v := range m.Values {
		if v.String.Kind == authz.Present {
			some = nil
			break
		}
		some = e.joined("_||_", some, e.value(e.call("_[_]", nil, e.headers(), e.text(name)), v.String))
	}
	out := there
	if some != nil {
		out = e.call("_&&_", nil, there, some)
	}
	if m.Not {
		out = e.call("!_", nil, out)
	}
	return out
}

func (e *expressions) value(header *exprv1.Expr, m authz.StringMatch) *exprv1.Expr {
	switch m.Kind {
	case authz.Prefix:
		return e.call("startsWith", header, e.text(m.Text))
	case authz.Suffix:
		return e.call("endsWith", header, e.text(m.Text))
	case authz.Contains:
		return e.call("contains", header, e.text(m.Text))
	case authz.NotEmpty:
		return e.call("_!=_", nil, header, e.text(""))
	default:
		return e.call("_==_", nil, header, e.text(m.Text))
	}
}
