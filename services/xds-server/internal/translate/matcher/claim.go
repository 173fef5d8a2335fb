package matcher

import (
	"strings"

	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	networking "istio.io/api/networking/v1alpha3"
)

// JWTFilter is the filter that verifies tokens. It writes the claims of a verified one into its dynamic metadata, below
// JWTPayload.
const (
	JWTFilter  = "envoy.filters.http.jwt_authn"
	JWTPayload = "payload"
)

// Metadata matches a value of a filter's dynamic metadata.
func Metadata(filter string, path []string, value *matcherv3.ValueMatcher) *matcherv3.MetadataMatcher {
	out := &matcherv3.MetadataMatcher{Filter: filter, Value: value}
	for _, key := range path {
		out.Path = append(out.Path, &matcherv3.MetadataMatcher_PathSegment{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: key}})
	}
	return out
}

// Text matches a string.
func Text(m *matcherv3.StringMatcher) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: m}}
}

// OneOf matches a list in which one string matches.
func OneOf(m *matcherv3.StringMatcher) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_ListMatch{ListMatch: &matcherv3.ListMatcher{
		MatchPattern: &matcherv3.ListMatcher_OneOf{OneOf: Text(m)},
	}}}
}

// Claim matches a claim of the verified token, by the names that lead to it: a string, or a list in which one matches.
func Claim(names []string, m *matcherv3.StringMatcher) *matcherv3.MetadataMatcher {
	return Metadata(JWTFilter, append([]string{JWTPayload}, names...), &matcherv3.ValueMatcher{
		MatchPattern: &matcherv3.ValueMatcher_OrMatch{OrMatch: &matcherv3.OrMatcher{
			ValueMatchers: []*matcherv3.ValueMatcher{Text(m), OneOf(m)},
		}},
	})
}

// claimHeader begins the names of headers that stand for claims in the matches of a VirtualService.
const claimHeader = "@request.auth.claims"

// ClaimOf returns the names that lead to the claim for which the name of a header stands, as Istio writes it:
// "@request.auth.claims.a.b" or "@request.auth.claims[a][b]". ok is false for other headers.
func ClaimOf(header string) (names []string, ok bool) {
	if len(header) < len(claimHeader) || !strings.EqualFold(header[:len(claimHeader)], claimHeader) {
		return nil, false
	}
	rest := header[len(claimHeader):]
	switch {
	case strings.HasPrefix(rest, ".") && len(rest) > 1:
		return strings.Split(rest[1:], "."), true
	case strings.HasPrefix(rest, "[") && strings.HasSuffix(rest, "]") && len(rest) > 2:
		return strings.Split(rest[1:len(rest)-1], "]["), true
	default:
		return nil, false
	}
}

// ClaimMatch converts the match of a claim; with not, it is true where the claim does not match or is absent.
func ClaimMatch(names []string, in *networking.StringMatch, not bool) (*matcherv3.MetadataMatcher, error) {
	if IsPresence(in) {
		out := Metadata(JWTFilter, append([]string{JWTPayload}, names...), &matcherv3.ValueMatcher{
			MatchPattern: &matcherv3.ValueMatcher_PresentMatch{PresentMatch: true},
		})
		out.Invert = not
		return out, nil
	}
	text, err := String(in)
	if err != nil {
		return nil, err
	}
	out := Claim(names, text)
	out.Invert = not
	return out, nil
}
