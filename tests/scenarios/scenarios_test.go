package scenarios

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit/userns"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/scenarios/internal/apiserver"
	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/report"
	"fairlead.dev/tests/scenarios/internal/runner"
)

//go:embed schema.json topologies
var shipped embed.FS

// fleets is how many topologies run at a time.
const fleets = 3

// TestScenarios runs the scenarios of the directories that -dir names: a fleet per topology, in parallel, and its
// scenarios one after the other.
func TestScenarios(t *testing.T) {
	scenarios := load(t)
	needs(t)
	results := &report.Report{}
	if *cluster {
		scenarios = inCluster(t, scenarios, results)
	}
	dir := outDir(t)
	t.Cleanup(func() {
		table := results.Table()
		t.Logf("\n%s", table)
		err := errors.Join(results.WriteJUnit(filepath.Join(dir, "junit.xml")),
			os.WriteFile(filepath.Join(dir, "summary.txt"), []byte(table), 0o644))
		if err != nil {
			t.Error(err)
		}
	})
	var topologies []*format.Topology
	of := map[*format.Topology][]*format.Scenario{}
	for _, s := range scenarios {
		if of[s.Topology] == nil {
			topologies = append(topologies, s.Topology)
		}
		of[s.Topology] = append(of[s.Topology], s)
	}
	// The largest first: it is what the whole waits for.
	slices.SortStableFunc(topologies, func(a, b *format.Topology) int { return len(of[b]) - len(of[a]) })
	free := places(t, min(fleets, len(topologies)))
	for _, topology := range topologies {
		t.Run(topology.Name, func(t *testing.T) {
			t.Parallel()
			place := <-free
			// After the fleet has ended, which it does with this test.
			t.Cleanup(func() { free <- place })
			(&suite{results: results, dir: dir, place: place}).run(t, topology, of[topology])
		})
	}
}

// places are where so many fleets can run at a time; in a cluster it is one.
func places(t *testing.T, n int) chan place {
	t.Helper()
	free := make(chan place, n)
	if *cluster {
		free <- install(t)
		return free
	}
	if *source == sourceStore {
		for range n {
			free <- place{}
		}
		return free
	}
	programs, err := binaries.Find(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var all sync.WaitGroup
	for range n {
		all.Go(func() { free <- place{api: apiserver.Start(t, programs.Path("config-watcher"), "../..")} })
	}
	all.Wait()
	if len(free) < n {
		t.FailNow() // Start has said why
	}
	t.Logf("%d API servers are ready after %s", n, time.Since(began).Round(time.Millisecond))
	return free
}

// suite is the scenarios of a topology.
type suite struct {
	results *report.Report
	dir     string
	place   place
}

func (s *suite) run(t *testing.T, topology *format.Topology, scenarios []*format.Scenario) {
	begin := time.Now()
	fleet, err := newFleet(t, topology, scenarios, filepath.Join(s.dir, topology.Name), s.place)
	if err != nil {
		t.Errorf("topology %s does not start: %v", topology.Name, err)
		for _, scenario := range scenarios {
			s.results.Add(report.Result{Topology: topology.Name, Name: scenario.Name, Failure: "its topology does not start: " + err.Error()})
		}
		return
	}
	t.Logf("topology %s is ready after %s", topology.Name, time.Since(begin).Round(time.Millisecond))
	for _, scenario := range scenarios {
		t.Run(scenario.Name, func(t *testing.T) { s.one(t, fleet, scenario) })
	}
}

func (s *suite) one(t *testing.T, fleet *fleet, scenario *format.Scenario) {
	result := report.Result{Topology: scenario.Topology.Name, Name: scenario.Name}
	defer func() { s.results.Add(result) }()
	for _, need := range scenario.Needs {
		if why := lacks(need); why != "" {
			result.Skipped = why
			t.Skip(why)
		}
	}
	if why := notOnDemand[scenario.Name]; why != "" && *onDemand {
		result.Skipped = why
		t.Skip(why)
	}
	if why := notYet[scenario.Name]; why != "" && only != scenario.Name {
		result.Skipped = "not yet: " + why
		t.Skip(result.Skipped)
	}
	begin := time.Now()
	r := &runner.Runner{Fleet: fleet, Caller: fleet, Log: t.Logf}
	if other, listed := otherWords[scenario.Name]; listed && (*source == sourceKubernetes || *cluster) {
		r.OtherWords = other.refusals
		result.Note = fmt.Sprintf("%d objects are refused by Kubernetes in its own words: %s", other.refusals, other.by)
	}
	ctx, cancel := context.WithTimeout(t.Context(), scenarioLimit)
	defer cancel()
	certificates := fleet.own
	var err error
	if certificates == nil {
		certificates, err = format.Issue(scenario.Certificates, begin)
	}
	if err == nil {
		err = r.Run(ctx, scenario, certificates)
	}
	result.Took = time.Since(begin)
	if err != nil {
		result.Failure = err.Error()
		t.Errorf("%s: %s\n%v", scenario.File, scenario.About, err)
	}
}

// notYet are scenarios of the contract that cannot hold yet, with what they wait for. They run, and fail, if -run has
// exactly their name; TestNotYet keeps the list true.
var notYet = map[string]string{
	"telemetry-metrics": "metrics of requests come with the telemetry APIs",
}

// notOnDemand are scenarios that do not hold for sidecars which hold only what they call, by design, with the reason.
var notOnDemand = map[string]string{
	"se-dynamic-dns": "a TLS connection to a host of resolution DYNAMIC_DNS goes to the address that its client has looked up " +
		"(docs/guide/on-demand.md)",
	"mesh-cluster-ip": "a sidecar that holds only what it calls knows of no address, and routes by the host of the request",
}

// scenarioLimit ends a scenario that hangs.
const scenarioLimit = 3 * time.Minute

// needs skips where the machine lacks what every scenario needs. For root on CI, and for whoever names scenarios, that
// is a failure, and so is an API server that was asked for and has no programs.
func needs(t *testing.T) {
	t.Helper()
	if *cluster {
		for _, name := range clusterEnvironment {
			if os.Getenv(name) == "" {
				t.Fatalf("-cluster: %s is not set: run `make scenarios-cluster`, or the test with `cluster exec`", name)
			}
		}
		return
	}
	if *source == sourceKubernetes {
		if _, err := kubeapi.Program("kube-apiserver"); err != nil {
			t.Fatal(err)
		}
	}
	programs := append(netns.Programs[:len(netns.Programs):len(netns.Programs)], "setpriv")
	if missing := userns.Missing(programs...); len(missing) > 0 && asked() {
		t.Fatalf("needs %s", strings.Join(missing, ", "))
	}
	userns.Need(t, programs...)
}

// asked reports whether scenarios were asked for by -dir, or by their names.
func asked() bool {
	named := only != ""
	flag.Visit(func(f *flag.Flag) { named = named || f.Name == "dir" })
	return named
}

// lacks says why the machine cannot do what a scenario needs; empty if it can.
func lacks(need string) string {
	// Where TPROXY is lacking, node-agent init says so.
	if raw, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6"); need == "ipv6" &&
		(err != nil || strings.TrimSpace(string(raw)) == "1") {
		return "the machine has no IPv6"
	}
	return ""
}

// load reads the scenarios that were asked for.
func load(t *testing.T) []*format.Scenario {
	t.Helper()
	pattern, err := regexp.Compile(only)
	if err != nil {
		t.Fatal(err)
	}
	asked := slices.DeleteFunc(all(t, strings.Split(*dirs, ",")...), func(s *format.Scenario) bool {
		return !pattern.MatchString(s.Name) ||
			!isInShare(s.Name)
	})
	if len(asked) == 0 {
		t.Fatalf("no scenario in %s has a name like %q", *dirs, only)
	}
	return asked
}

// all reads the scenarios of directories.
func all(t *testing.T, dirs ...string) (out []*format.Scenario) {
	t.Helper()
	schema, err := shipped.ReadFile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	loader, err := format.NewLoader(schema, shipped)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		found, err := loader.Load(locate(dir))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, found...)
	}
	return out
}

// isInShare tells whether a scenario is among those that -share and -share-by choose.
func isInShare(name string) bool {
	return draw(name)%uint32(max(*share, 1)) == 0
}

// draw is a number for a scenario by which -share-by chooses.
func draw(name string) uint32 {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(*shareBy + "/" + name)) // never fails
	return hash.Sum32()
}

// locate finds a directory that was named from where `go test` was called: this package's directory, or one above.
func locate(dir string) string {
	for _, base := range []string{".", "..", "../.."} {
		if at := filepath.Join(base, dir); !filepath.IsAbs(dir) {
			if info, err := os.Stat(at); err == nil && info.IsDir() {
				return at
			}
		}
	}
	return dir
}

// outDir is where reports and what failed are kept. Without -out it is a temporary directory that goes unless something
// failed.
func outDir(t *testing.T) string {
	t.Helper()
	dir := *out
	if dir != "" {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join("..", dir) // from where the suite is run, above this package
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	dir, err := os.MkdirTemp("", "scenarios")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs, configuration dumps and junit.xml are kept in %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
