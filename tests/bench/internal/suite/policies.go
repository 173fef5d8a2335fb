package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterchain "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/filter_chain/v3"
	rbac "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/tests/bench/internal/floor"
	"fairlead.dev/tests/bench/internal/mesh"
	"fairlead.dev/tests/bench/internal/proxy"
	"fairlead.dev/tests/bench/internal/wire"
	"fairlead.dev/tests/internal/wait"
)

// Goals of AuthorizationPolicies: of a cold start and of a further proxy as multiples of the same without policies, of
// a change as a multiple of the floor and of the filter.
const (
	policiesCold    = 1.3
	policiesMemory  = 1.2
	policyChange    = 2
	policyBytes     = 2
	policyNamespace = 500
	policyCount     = 1000
)

// guarded is a mesh with so many AuthorizationPolicies.
func guarded(policies, sidecars int) mesh.Spec {
	return mesh.Spec{Services: 1000, Sidecars: sidecars, Classes: 100, Namespaces: policyNamespace, Policies: policies}
}

// policies measures what AuthorizationPolicies cost xds-server: at a cold start, at a change of one, and in memory.
func (l *lab) policies(ctx context.Context, t *table) error {
	if err := l.policiesCold(ctx, t); err != nil {
		return fmt.Errorf("cold start: %w", err)
	}
	if err := l.policyChanges(ctx, t); err != nil {
		return fmt.Errorf("a change: %w", err)
	}
	if err := l.policiesMemory(ctx, t); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	return nil
}

// policiesCold starts the mesh with and without policies, in turn, and compares the shortest of each.
func (l *lab) policiesCold(ctx context.Context, t *table) error {
	const turns = 3
	var with, without []*start
	for range turns {
		for _, of := range []struct {
			policies int
			to       *[]*start
		}{{0, &without}, {policyCount, &with}} {
			got, err := l.startOnce(ctx, guarded(of.policies, 200))
			if err != nil {
				return err
			}
			*of.to = append(*of.to, got)
		}
	}
	cpu := func(list []*start) time.Duration {
		return slices.MinFunc(list, func(a, b *start) int { return int(a.cpu - b.cpu) }).cpu
	}
	took := func(list []*start) time.Duration {
		return slices.MinFunc(list, func(a, b *start) int { return int(a.took - b.took) }).took
	}
	what := fmt.Sprintf("cold start with %s policies beside without, 200 sidecars", thousands(policyCount))
	t.besideLine("policies/cold/cpu", what+": CPU", cpu(with), cpu(without), policiesCold)
	t.besideLine("policies/cold/all", what+": last one configured", took(with), took(without), policiesCold)
	t.bytesLine("policies/cold/bytes", fmt.Sprintf("%s: bytes per proxy (without %s)", what, size(float64(without[0].bytes)/200)),
		float64(with[0].bytes)/200, -1, "")
	return nil
}

func (l *lab) startOnce(ctx context.Context, spec mesh.Spec) (*start, error) {
	f, err := l.fixture(ctx, "policies", spec)
	if f != nil {
		defer f.close()
	}
	if err != nil {
		return nil, err
	}
	return f.connectAll(ctx, f.server, proxy.Target{Address: f.server.plaintext})
}

// policyChanges changes one policy.
func (l *lab) policyChanges(ctx context.Context, t *table) error {
	f, err := l.connected(ctx, "policies", guarded(policyCount, 200))
	if f != nil {
		defer f.close()
	}
	if err != nil {
		return err
	}
	if err := f.openFloor(ctx, floor.Files{}, true); err != nil {
		return err
	}
	// Giving back the cold start's memory is none of the change's doing.
	if err := wait.Pause(ctx, memorySettles); err != nil {
		return err
	}
	got, base, err := f.change(ctx, "policy", f.repetitions(), f.spec.Policy, nil)
	if err != nil {
		return err
	}
	filter, err := filterSize(f.sent)
	if err != nil {
		return err
	}
	what := f.of(fmt.Sprintf("one AuthorizationPolicy of %d rules", mesh.RulesOfPolicy))
	t.cpuLine(f.id("change"), what, got, base, policyChange, "")
	selected := f.spec.Selected()
	reached := line{id: f.id("change/reached"), what: what + ": proxies reached", figure: fmt.Sprint(got.Reached), goal: fmt.Sprint(selected)}
	if reached.verdict = reach; got.Reached != selected {
		reached.verdict = missed
	}
	t.add(reached)
	t.add(line{
		id: f.id("change/bytes"), what: what + ": bytes per proxy", figure: size(got.PerProxy()),
		goal:    fmt.Sprintf("≤ %d × its filter = %s", policyBytes, size(policyBytes*filter)),
		verdict: judge(got.PerProxy(), policyBytes*filter, true),
	})
	t.fixedLine(f.id("change/p99"), what+": p99 change → received", got.P99(), p99Of(base), 0, "")

	// The cost of a revision decides the row of two proxies: of a policy for all it does not.
	if got, base, err = f.change(ctx, "root-policy", f.repetitions(), f.spec.RootPolicy, nil); err != nil {
		return err
	}
	what = f.of(fmt.Sprintf("one AuthorizationPolicy of %d rules for all", mesh.RulesOfPolicy))
	t.cpuLine(f.id("root"), what, got, base, policyChange, "")
	t.bytesLine(f.id("root/bytes"), what+": bytes per proxy", got.PerProxy(), -1, "")
	t.fixedLine(f.id("root/p99"), what+": p99 change → received", got.P99(), p99Of(base), 0, "")
	return nil
}

// filterSize is the size of the RBAC filter that the proxies were sent.
func filterSize(sent map[string][]*wire.Content) (float64, error) {
	for _, contents := range sent {
		for _, c := range contents {
			if c.Type != wire.Extension {
				continue
			}
			var response discovery.DeltaDiscoveryResponse
			if err := proto.Unmarshal(c.Body, &response); err != nil {
				return 0, err
			}
			for _, r := range response.GetResources() {
				var slot core.TypedExtensionConfig
				var chain filterchain.FilterChainConfig
				if err := errors.Join(r.GetResource().UnmarshalTo(&slot), slot.GetTypedConfig().UnmarshalTo(&chain)); err != nil {
					return 0, err
				}
				for _, filter := range chain.GetDefaultFilterChain().GetFilters() {
					if filter.GetTypedConfig().MessageIs(&rbac.RBAC{}) {
						return float64(len(filter.GetTypedConfig().GetValue())), nil
					}
				}
			}
		}
	}
	return 0, errors.New("no proxy was sent a filter of a policy")
}

// policiesMemory compares what a further proxy takes of xds-server's memory with policies and without.
func (l *lab) policiesMemory(ctx context.Context, t *table) error {
	without, err := l.furtherProxy(ctx, 0)
	if err != nil {
		return err
	}
	with, err := l.furtherProxy(ctx, policyCount)
	if err != nil {
		return err
	}
	t.add(line{
		id: "policies/memory/each", what: fmt.Sprintf("memory of a further proxy with %s policies beside without", thousands(policyCount)),
		figure: size(with), floor: size(without), ratio: times(with, without), goal: fmt.Sprintf("≤ %g × without", policiesMemory),
		verdict: judge(with, policiesMemory*without, true),
	})
	return nil
}

// furtherProxy is what one of 800 proxies takes that follow 200 of the same classes.
func (l *lab) furtherProxy(ctx context.Context, policies int) (float64, error) {
	const first = 200
	spec := guarded(policies, 1000)
	f, err := l.fixture(ctx, "policies", spec)
	if f != nil {
		defer f.close()
	}
	if err != nil {
		return 0, err
	}
	var held [2]float64
	all := spec.Proxies()
	for i, proxies := range [][]mesh.Proxy{all[:first], all[first:]} {
		part := &fixture{lab: l, spec: spec, fleet: proxy.NewFleet(proxies)}
		defer part.fleet.Close()
		if _, err := part.connectAll(ctx, f.server, proxy.Target{Address: f.server.plaintext}); err != nil {
			return 0, err
		}
		if err := wait.Pause(ctx, memorySettles); err != nil {
			return 0, err
		}
		memory, err := f.server.Memory()
		if err != nil {
			return 0, err
		}
		held[i] = float64(memory.Resident)
	}
	return (held[1] - held[0]) / float64(len(all)-first), nil
}
