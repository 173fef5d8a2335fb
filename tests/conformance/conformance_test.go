package conformance

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/gateway-api/conformance"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/flags"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"
)

// run is one run of the suite.
type run struct {
	name     string
	profiles []suite.ConformanceProfileName
	// mesh is true if clients and servers have sidecars, and tests are those of the mesh.
	mesh bool
}

var runs = []run{
	{name: "gateway", profiles: []suite.ConformanceProfileName{
		suite.GatewayHTTPConformanceProfileName, suite.GatewayTLSConformanceProfileName, suite.GatewayGRPCConformanceProfileName,
		suite.GatewayTCPConformanceProfileName, suite.GatewayUDPConformanceProfileName,
	}},
	{name: "mesh", mesh: true, profiles: []suite.ConformanceProfileName{
		suite.MeshHTTPConformanceProfileName, suite.MeshGRPCConformanceProfileName,
	}},
}

// TestConformance installs the control plane and runs the suite twice: for gateways, and for the mesh.
func TestConformance(t *testing.T) {
	if os.Getenv("CONFORMANCE_OUT") == "" {
		t.Skip("CONFORMANCE_OUT names no directory for reports: run `make conformance`")
	}
	e, err := readEnvironment(os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	e.plane.install(t)
	for _, r := range runs {
		chosen := e.chosen(r)
		if len(chosen) == 0 {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			results := &results{began: time.Now(), of: map[string]string{}}
			t.Cleanup(func() {
				if t.Failed() {
					keep(t, filepath.Join(e.out, r.name+"-pods"))
				}
				do(t, "kubectl", "delete", "namespaces", "-l", "gateway-conformance")
			})
			t.Cleanup(func() { results.write(t, e.file(r.name+"-tests.yaml"), chosen, e.plane.excuses()) })
			conformance.RunConformanceWithOptions(t, e.options(t, r, chosen, results))
		})
	}
}

// file is that of a report; empty if not all tests run, because it would say that the others were left out.
func (e environment) file(name string) string {
	if e.only != "" || e.sample > 0 {
		return ""
	}
	return filepath.Join(e.out, name)
}

// chosen lists the tests of a run that are to run: RUN, or SAMPLE of them.
func (e environment) chosen(r run) (list []suite.ConformanceTest) {
	for _, c := range sampled(tests.ConformanceTests, e.sample, e.by) {
		if slices.Contains(c.Features, features.SupportMesh) == r.mesh && (e.only == "" || e.only == c.ShortName) {
			list = append(list, c)
		}
	}
	return list
}

// options are those of the suite; what its own flags say comes first.
func (e environment) options(t *testing.T, r run, chosen []suite.ConformanceTest, into *results) suite.ConformanceOptions {
	t.Helper()
	o := conformance.DefaultOptions(t)
	// Each test makes clients of its own; those of the default wait for one another.
	o.RestConfig.QPS = -1
	o.ConformanceProfiles, o.Implementation = e.plane.supported(r.profiles), e.plane.Implementation
	o.UsableNetworkAddresses, o.UnusableNetworkAddresses = e.addresses()
	o.GatewayClassName = e.plane.Class
	if r.mesh {
		o.NamespaceLabels = map[string]string{"istio-injection": "enabled"}
	}
	switch {
	case !e.plane.Inferred:
		o.SupportedFeatures = sets.List(e.plane.features(r.mesh))
	case r.mesh:
		o.GatewayClassName, o.MeshName = "", e.plane.Mesh
	}
	switch {
	case e.only != "":
		o.RunTest = e.only
	case e.sample > 0:
		o.SkipTests = append(slices.Collect(maps.Keys(e.plane.Fails)), others(chosen)...)
	default:
		o.SkipTests = slices.Collect(maps.Keys(e.plane.Fails))
	}
	o.ReportOutputPath = e.file(r.name + ".yaml")
	o.Hook = into.add
	// They are removed once it is written down what became of them.
	o.CleanupBaseResources = false
	flags.ApplyAll(&o.ConfigurableOptions)
	return o
}

// others are the names of the tests that are not chosen, of both runs.
func others(chosen []suite.ConformanceTest) (names []string) {
	for _, c := range tests.ConformanceTests {
		if !slices.ContainsFunc(chosen, named(c.ShortName)) {
			names = append(names, c.ShortName)
		}
	}
	return names
}
