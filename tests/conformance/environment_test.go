package conformance

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
)

// environment is what `make conformance` says.
type environment struct {
	// plane is CONTROL_PLANE, the one that is tested.
	plane *plane
	// out is CONFORMANCE_OUT, where reports are written.
	out string
	// only is RUN, the test that runs alone; empty for all.
	only string
	// sample is SAMPLE, how many tests run, which SAMPLE_BY chooses; 0 for all.
	sample int
	by     string
	// usable is the last address of CLUSTER_BALANCERS, the range of the cluster's load balancers, which none has by
	// chance.
	usable netip.Addr
}

// unusable is an address that no load balancer of the cluster can have (RFC 5737).
var unusable = netip.MustParseAddr("203.0.113.1")

func readEnvironment(get func(string) string) (e environment, err error) {
	e = environment{out: get("CONFORMANCE_OUT"), only: get("RUN"), by: get("SAMPLE_BY")}
	if e.plane, err = planeNamed(cmp.Or(get("CONTROL_PLANE"), "fairlead")); err != nil {
		return e, err
	}
	balancers, err := netip.ParsePrefix(get("CLUSTER_BALANCERS"))
	if err != nil || !balancers.Addr().Is4() {
		return e, fmt.Errorf("CLUSTER_BALANCERS=%s is no range of IPv4 addresses: `cluster exec` sets it", get("CLUSTER_BALANCERS"))
	}
	for ip := balancers.Masked().Addr(); balancers.Contains(ip); ip = ip.Next() {
		e.usable = ip
	}
	if n := get("SAMPLE"); n != "" {
		if e.sample, err = strconv.Atoi(n); err != nil || e.sample < 1 {
			return e, fmt.Errorf("SAMPLE=%s is not the number of tests to run", n)
		}
	}
	if e.only != "" && (e.sample > 0 || !slices.ContainsFunc(tests.ConformanceTests, named(e.only))) {
		return e, fmt.Errorf("RUN=%s is to be the name of one test of the suite, and without SAMPLE", e.only)
	}
	return e, nil
}

// named is true for the test with a name.
func named(name string) func(suite.ConformanceTest) bool {
	return func(t suite.ConformanceTest) bool { return t.ShortName == name }
}

// sampled are n of the tests, which a text chooses, in their order; all if n is 0.
func sampled(all []suite.ConformanceTest, n int, by string) []suite.ConformanceTest {
	if n == 0 || n >= len(all) {
		return all
	}
	key := func(t suite.ConformanceTest) [32]byte { return sha256.Sum256([]byte(by + t.ShortName)) }
	byKey := slices.SortedFunc(slices.Values(all), func(a, b suite.ConformanceTest) int {
		x, y := key(a), key(b)
		return slices.Compare(x[:], y[:])
	})
	return slices.DeleteFunc(slices.Clone(all), func(t suite.ConformanceTest) bool {
		return !slices.ContainsFunc(byKey[:n], named(t.ShortName))
	})
}

// addresses are a free and an unusable one, of the kind that the control plane takes for a Gateway's.
func (e environment) addresses() (usable, other []gatewayv1.GatewaySpecAddress) {
	kind, good, bad := gatewayv1.IPAddressType, e.usable.String(), unusable.String()
	if e.plane.Hostnames {
		kind, good, bad = gatewayv1.HostnameAddressType, suite.InfraBackendServiceNameV1+"."+suite.InfrastructureNamespace+".svc.cluster.local", "foo"
	}
	return []gatewayv1.GatewaySpecAddress{{Type: &kind, Value: good}}, []gatewayv1.GatewaySpecAddress{{Type: &kind, Value: bad}}
}

func TestEnvironmentIsChecked(t *testing.T) {
	good := map[string]string{"CLUSTER_BALANCERS": "192.0.2.128/26"}
	for name, c := range map[string]struct {
		set  map[string]string
		fine bool
	}{
		"nothing else":                 {nil, true},
		"istiod":                       {map[string]string{"CONTROL_PLANE": "istiod", "RUN": "HTTPRouteSimpleSameNamespace"}, true},
		"a sample":                     {map[string]string{"SAMPLE": "3", "SAMPLE_BY": "x"}, true},
		"another control plane":        {map[string]string{"CONTROL_PLANE": "contour"}, false},
		"no such test":                 {map[string]string{"RUN": "HTTPRouteSimple"}, false},
		"one test, and a sample":       {map[string]string{"RUN": "HTTPRouteSimpleSameNamespace", "SAMPLE": "3"}, false},
		"a sample of none":             {map[string]string{"SAMPLE": "0"}, false},
		"what is no range":             {map[string]string{"CLUSTER_BALANCERS": "x"}, false},
		"no range":                     {map[string]string{"CLUSTER_BALANCERS": ""}, false},
		"a sample that is no number":   {map[string]string{"SAMPLE": "x"}, false},
		"the default, written in full": {map[string]string{"CONTROL_PLANE": "fairlead"}, true},
	} {
		e, err := readEnvironment(func(key string) string {
			if v, ok := c.set[key]; ok {
				return v
			}
			return good[key]
		})
		if (err == nil) != c.fine {
			t.Errorf("%s: %v", name, err)
		}
		if c.fine && e.usable.String() != "192.0.2.191" {
			t.Errorf("%s: the last address is %s", name, e.usable)
		}
	}
}

func TestASampleIsOfTheCommit(t *testing.T) {
	names := func(by string) (list []string) {
		for _, c := range sampled(tests.ConformanceTests, 5, by) {
			list = append(list, c.ShortName)
		}
		return list
	}
	a, again, b := names("a"), names("a"), names("b")
	if len(a) != 5 || !slices.Equal(a, again) || slices.Equal(a, b) {
		t.Errorf("samples are %v, %v and %v; want five tests, the same for the same commit alone", a, again, b)
	}
	if n := len(sampled(tests.ConformanceTests, 0, "a")); n != len(tests.ConformanceTests) {
		t.Errorf("%d of all tests", n)
	}
}

// TestEveryTestBelongsToARun holds because a test that asks for neither kind of feature would run in both, or in none.
func TestEveryTestBelongsToARun(t *testing.T) {
	var err error
	n := 0
	for _, c := range tests.ConformanceTests {
		gateway, mesh := slices.Contains(c.Features, "Gateway"), slices.Contains(c.Features, "Mesh")
		if gateway == mesh {
			err = errors.Join(err, fmt.Errorf("%s asks for %v", c.ShortName, c.Features))
		}
		n++
	}
	if err != nil || n != 153 {
		t.Errorf("%d tests: %v", n, err)
	}
}
