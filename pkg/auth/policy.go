package auth

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Policy maps a method, "/pkg.Service/Method", or a service, "/pkg.Service/*", to the rule about its callers. A
// method's own rule wins over its service's. Without a rule, every call is denied.
type Policy map[string]Rule

// Rule says whether an authenticated peer may call.
type Rule interface {
	Allowed(Peer) bool
}

// RuleFor returns the rule for a full gRPC method; nil if there is none.
func (p Policy) RuleFor(fullMethod string) Rule {
	if r, ok := p[fullMethod]; ok {
		return r
	}
	i := strings.LastIndexByte(fullMethod, '/')
	if i < 0 {
		return nil
	}
	return p[fullMethod[:i]+"/*"]
}

// Validate returns errors for entries that can never work: malformed keys, nil rules, ids that are no SPIFFE ids.
func (p Policy) Validate() error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(p)) {
		service, method, ok := strings.Cut(strings.TrimPrefix(key, "/"), "/")
		if !strings.HasPrefix(key, "/") || !ok || service == "" || method == "" || strings.Contains(method, "/") {
			errs = append(errs, fmt.Errorf("policy key %q: must be /pkg.Service/Method or /pkg.Service/*", key))
		}
		rule := p[key]
		if rule == nil {
			errs = append(errs, fmt.Errorf("policy for %q: rule is nil", key))
			continue
		}
		if v, ok := rule.(interface{ Validate() error }); ok {
			if err := v.Validate(); err != nil {
				errs = append(errs, fmt.Errorf("policy for %q: %w", key, err))
			}
		}
	}
	return errors.Join(errs...)
}

type ruleFunc func(Peer) bool

func (f ruleFunc) Allowed(p Peer) bool { return f(p) }

// AnyIdentity allows every authenticated peer.
func AnyIdentity() Rule { return ruleFunc(func(p Peer) bool { return !p.ID.IsZero() }) }

// InTrustDomain allows every authenticated peer of one trust domain.
func InTrustDomain(td spiffeid.TrustDomain) Rule {
	return ruleFunc(func(p Peer) bool { return !td.IsZero() && p.ID.MemberOf(td) })
}

// IDs allows the peers with these SPIFFE ids, such as "spiffe://cluster.local/ns/istio-system/sa/xds-server".
func IDs(ids ...string) Rule { return idRule(ids) }

type idRule []string

func (r idRule) Allowed(p Peer) bool {
	return !p.ID.IsZero() && slices.Contains(r, p.ID.String())
}

func (r idRule) Validate() error {
	if len(r) == 0 {
		return errors.New("rule names no identity, so nobody could call")
	}
	for _, id := range r {
		if _, err := spiffeid.FromString(id); err != nil {
			return fmt.Errorf("identity %q: %w", id, err)
		}
	}
	return nil
}

// Any allows the peers that one of the rules allows.
func Any(rules ...Rule) Rule { return anyRule(rules) }

type anyRule []Rule

func (a anyRule) Allowed(p Peer) bool {
	return slices.ContainsFunc(a, func(r Rule) bool { return r.Allowed(p) })
}

// Why implements Explainer with the first rule that is one.
func (a anyRule) Why(p Peer) string {
	for _, r := range a {
		if e, ok := r.(Explainer); ok {
			return e.Why(p)
		}
	}
	return ""
}

// Explainer is a Rule that explains why it does not allow a peer; an empty text means that it has nothing to add.
type Explainer interface{ Why(p Peer) string }

// WhyNot returns the text for a peer that a rule, which may be nil, does not allow.
func WhyNot(r Rule, p Peer) string {
	if e, ok := r.(Explainer); ok {
		if why := e.Why(p); why != "" {
			return why
		}
	}
	return "method is not allowed for this identity"
}

// Anonymous allows calls without credentials. It is for health checks, and for unix sockets that admit one user only.
func Anonymous() Rule { return anonymous{} }

type anonymous struct{}

func (anonymous) Allowed(Peer) bool { return true }

// IsAnonymous reports whether rule is Anonymous.
func IsAnonymous(rule Rule) bool {
	_, ok := rule.(anonymous)
	return ok
}
