package decisions

import (
	"context"
	"slices"
	"testing"

	rbac "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	jwt "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	httprbac "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/tests/internal/gate"
	"fairlead.dev/tests/internal/policygen"
)

// spoilt are faults that a translation might have.
var spoilt = map[string]func(*Filters) error{
	"DENY is dropped": func(f *Filters) error {
		f.HTTP = slices.DeleteFunc(f.HTTP, func(h *hcm.HttpFilter) bool {
			m := &httprbac.RBAC{}
			return h.GetTypedConfig().UnmarshalTo(m) == nil && m.GetRules().GetAction() == rbac.RBAC_DENY
		})
		return nil
	},
	"nots are ignored": func(f *Filters) error {
		return edit(f, &httprbac.RBAC{}, func(m *httprbac.RBAC) {
			for _, p := range m.GetRules().GetPolicies() {
				for _, list := range p.GetPrincipals() {
					for i, id := range list.GetAndIds().GetIds() {
						if not := id.GetNotId(); not != nil {
							list.GetAndIds().Ids[i] = not
						}
					}
				}
			}
		})
	},
	"audiences are skipped": func(f *Filters) error {
		return edit(f, &jwt.JwtAuthentication{}, func(m *jwt.JwtAuthentication) {
			for _, p := range m.GetProviders() {
				p.Audiences = nil
			}
		})
	},
	"tokens are verified last": func(f *Filters) error {
		slices.SortStableFunc(f.HTTP, func(a, b *hcm.HttpFilter) int {
			last := func(h *hcm.HttpFilter) int {
				if h.GetTypedConfig().MessageIs(&jwt.JwtAuthentication{}) {
					return 1
				}
				return 0
			}
			return last(a) - last(b)
		})
		return nil
	},
	"nobody says what providers are asked": func(f *Filters) error {
		f.HTTP = slices.DeleteFunc(f.HTTP, func(h *hcm.HttpFilter) bool {
			m := &httprbac.RBAC{}
			return h.GetTypedConfig().UnmarshalTo(m) == nil && m.GetRules() == nil
		})
		return nil
	},
	"a dry run is enforced": func(f *Filters) error {
		return edit(f, &httprbac.RBAC{}, func(m *httprbac.RBAC) {
			if m.GetShadowRulesStatPrefix() == "istio_dry_run_deny_" || m.GetShadowRulesStatPrefix() == "istio_dry_run_allow_" {
				m.Rules = m.GetShadowRules()
			}
		})
	},
	"TCP is forgotten": func(f *Filters) error {
		f.Network = nil
		return nil
	},
}

// edit changes the HTTP filters of one type.
func edit[M proto.Message](f *Filters, m M, change func(M)) error {
	for i, h := range f.HTTP {
		if !h.GetTypedConfig().MessageIs(m) {
			continue
		}
		if err := h.GetTypedConfig().UnmarshalTo(m); err != nil {
			return err
		}
		change(m)
		packed, err := anypb.New(m)
		if err != nil {
			return err
		}
		f.HTTP[i] = &hcm.HttpFilter{Name: h.GetName(), ConfigType: &hcm.HttpFilter_TypedConfig{TypedConfig: packed}}
	}
	return nil
}

// noticesFaults asks again with filters of ours that have a fault, which the comparison must notice.
func (b *bench) noticesFaults(t *testing.T, sets []policygen.Set, istio, ours side) {
	t.Helper()
	for name, spoil := range spoilt {
		t.Run(name, func(t *testing.T) {
			faulty := func(ctx context.Context, s policygen.Set) (Filters, error) {
				f, err := ours(ctx, s)
				if err == nil {
					err = spoil(&f)
				}
				return f, err
			}
			unlisted := 0
			b.ask(t, sets, [gate.Sides]side{istio, faulty}, b.drawn, func(a Answered) {
				if !a.Same() && a.Row == nil {
					unlisted++
				}
			})
			if t.Logf("%d answers differ", unlisted); unlisted == 0 {
				t.Errorf("the comparison of %d sets does not notice it", len(sets))
			}
		})
	}
}

// TestFaultsAreNoticed: if the filters had one of these faults, the comparison would show it.
func TestFaultsAreNoticed(t *testing.T) {
	b := newBench(t)
	m := Mesh{TrustDomain: policygen.TrustDomain, Aliases: []string{policygen.OldDomain}, Providers: drawnProviders}
	for n := range 50 {
		m.Sets = append(m.Sets, policygen.Draw(1, n, b.keys))
	}
	b.perSet = min(b.perSet, 20)
	istio, ours := b.start(t, m)
	b.noticesFaults(t, m.Sets, istio.filters, ours.within)
}
