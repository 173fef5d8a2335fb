// Package matcher turns Istio's StringMatch into Envoy's string, header and query parameter matchers (String, Header,
// WithoutHeader, Query). It uses an exact matcher wherever that means the same as the user's regular expression, and
// returns an error for expressions that Envoy would reject.
package matcher

import (
	"fmt"
	"regexp"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/proxytext"
)

// Regex returns a matcher for the whole string, or an error for an expression that Envoy would reject.
func Regex(expression string) (*matcherv3.RegexMatcher, error) {
	if err := proxytext.Regex(expression); err != nil {
		return nil, fmt.Errorf("regular expression %q: %w", expression, err)
	}
	return &matcherv3.RegexMatcher{Regex: expression}, nil
}

// IsLiteral reports whether an expression matches only itself.
func IsLiteral(expression string) bool {
	return expression != "" && regexp.QuoteMeta(expression) == expression
}

// Exact matches strings equal to value.
func Exact(value string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: value}}
}

// Prefix matches strings that begin with value, which must not be empty.
func Prefix(value string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: value}}
}

// IsPresence reports whether a match tests only that a value is present: an empty StringMatch, an empty prefix, or
// Istio's regex "*".
func IsPresence(in *networking.StringMatch) bool {
	switch m := in.GetMatchType().(type) {
	case nil:
		return true
	case *networking.StringMatch_Prefix:
		return m.Prefix == ""
	case *networking.StringMatch_Regex:
		return m.Regex == "*"
	default:
		return false
	}
}

// String converts a match for which IsPresence is false.
func String(in *networking.StringMatch) (*matcherv3.StringMatcher, error) {
	switch m := in.GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		return Exact(m.Exact), nil
	case *networking.StringMatch_Prefix:
		return Prefix(m.Prefix), nil
	case *networking.StringMatch_Regex:
		if IsLiteral(m.Regex) {
			return Exact(m.Regex), nil
		}
		regex, err := Regex(m.Regex)
		if err != nil {
			return nil, err
		}
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: regex}}, nil
	default:
		return nil, fmt.Errorf("string match of type %T is not supported", m)
	}
}

// Header matches a request header, or a pseudo header such as ":method".
func Header(name string, in *networking.StringMatch) (*routev3.HeaderMatcher, error) {
	out := &routev3.HeaderMatcher{Name: name}
	if IsPresence(in) {
		out.HeaderMatchSpecifier = &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}
		return out, nil
	}
	value, err := String(in)
	if err != nil {
		return nil, err
	}
	out.HeaderMatchSpecifier = &routev3.HeaderMatcher_StringMatch{StringMatch: value}
	return out, nil
}

// WithoutHeader matches the requests that Header does not match. As in Istio, a missing header counts as an empty one.
func WithoutHeader(name string, in *networking.StringMatch) (*routev3.HeaderMatcher, error) {
	out, err := Header(name, in)
	if err != nil {
		return nil, err
	}
	out.InvertMatch = true
	if !IsPresence(in) {
		out.TreatMissingHeaderAsEmpty = true
	}
	return out, nil
}

// Query matches a query parameter.
func Query(name string, in *networking.StringMatch) (*routev3.QueryParameterMatcher, error) {
	out := &routev3.QueryParameterMatcher{Name: name}
	if IsPresence(in) {
		out.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_PresentMatch{PresentMatch: true}
		return out, nil
	}
	value, err := String(in)
	if err != nil {
		return nil, err
	}
	out.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_StringMatch{StringMatch: value}
	return out, nil
}
