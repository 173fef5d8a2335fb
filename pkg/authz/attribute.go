package authz

import (
	"fmt"
	"strings"
)

// Attributes of conditions. Those that end with "[" or "." begin longer ones.
const (
	attrPrincipal      = "source.principal"
	attrServiceAccount = "source.serviceAccount"
	attrTrustDomain    = "source.trustDomain"
	attrHeaders        = "request.headers"
	attrClaims         = "request.auth.claims"
	attrMetadata       = "experimental.envoy.filters."
)

// attribute says what a condition with a key compares. value is nil where the mesh or the policy counts.
type attribute struct {
	field Field
	key   []string
	value reader
}

var attributes = map[string]attribute{
	attrPrincipal:            {field: Principal},
	attrServiceAccount:       {field: Principal},
	attrTrustDomain:          {field: Principal},
	"source.namespace":       {field: Principal, value: namespace},
	"source.ip":              {field: SourceIP, value: block},
	"remote.ip":              {field: RemoteIP, value: block},
	"request.auth.principal": {field: RequestPrincipal, value: requestPrincipal},
	"request.auth.audiences": {field: Claim, key: []string{"aud"}, value: text},
	"request.auth.presenter": {field: Claim, key: []string{"azp"}, value: text},
	"destination.ip":         {field: DestinationIP, value: block},
	"destination.port":       {field: Port, value: port},
	"connection.sni":         {field: SNI, value: text},
}

// IsAttribute reports whether a condition may have the key.
func IsAttribute(key string) bool {
	_, err := attributeOf(key)
	return err == nil
}

// attributeOf returns what a condition with the key compares.
func attributeOf(key string) (attribute, error) {
	if a, ok := attributes[key]; ok {
		return a, nil
	}
	bad := fmt.Errorf("%s is not an attribute", quote(key))
	if rest, ok := strings.CutPrefix(key, attrHeaders); ok {
		name, ok := bracketed(rest)
		if !ok {
			return attribute{}, bad
		}
		return attribute{field: Header, key: []string{lower(name)}, value: header}, nil
	}
	if rest, ok := strings.CutPrefix(key, attrClaims); ok {
		claim, ok := claimPath(rest)
		if !ok {
			return attribute{}, bad
		}
		return attribute{field: Claim, key: claim, value: text}, nil
	}
	if strings.HasPrefix(key, attrMetadata) {
		filter, name, ok := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(key, "experimental."), "]"), "[")
		if !ok {
			return attribute{}, bad
		}
		return attribute{field: Metadata, key: []string{filter, name}, value: metadata}, nil
	}
	return attribute{}, bad
}

// bracketed returns what stands in "[…]".
func bracketed(s string) (string, bool) {
	if len(s) < 2 || s[0] != '[' || s[len(s)-1] != ']' {
		return "", false
	}
	return s[1 : len(s)-1], true
}

// claimPath returns the names of "[a][b]". Brackets of another form are part of one claim's name, as in "[a[0]]".
func claimPath(s string) (names []string, ok bool) {
	whole, ok := bracketed(s)
	if !ok {
		return nil, false
	}
	for rest := s; rest != ""; {
		end := strings.IndexByte(rest, ']')
		if rest[0] != '[' || end < 0 || strings.Contains(rest[1:end], "[") {
			return []string{whole}, true
		}
		names, rest = append(names, rest[1:end]), rest[end+1:]
	}
	return names, true
}
