package scenarios

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	kube "k8s.io/client-go/kubernetes"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/scenarios/internal/apiserver"
	"fairlead.dev/tests/scenarios/internal/document"
	"fairlead.dev/tests/scenarios/internal/eligible"
	"fairlead.dev/tests/scenarios/internal/format"
	"fairlead.dev/tests/scenarios/internal/harness"
	"fairlead.dev/tests/scenarios/internal/report"
)

// clusterEnvironment is what -cluster needs: the administrator's kubeconfig and the node's file system, which
// `cluster exec` sets, and the directory with fairlead.
var clusterEnvironment = []string{"CLUSTER_KUBECONFIG", "CLUSTER_ROOT", "BIN_DIR"}

const (
	// echoImage is that of `make scenarios-cluster`.
	echoImage = "fairlead/scenario-echo:dev"
	// clusterDNS is the cluster's name server, and outsideDNS where that of the world outside is run.
	clusterDNS = "198.19.0.10:53"
	outsideDNS = "192.0.2.10:5300"
)

// install installs Fairlead in the cluster, until the test ends.
func install(t *testing.T) place {
	t.Helper()
	began := time.Now()
	kubeconfig := os.Getenv("CLUSTER_KUBECONFIG")
	config := kubeapi.Load(t, kubeconfig)
	client, err := kube.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	fairlead := func(args ...string) {
		t.Helper()
		cmd := exec.Command(filepath.Join(os.Getenv("BIN_DIR"), "fairlead"), args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("fairlead %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	issuer := testkit.Must(format.NewMaterial("applications", format.Certificate{CA: true}, nil, began))(t)
	operator := filepath.Join(t.TempDir(), "operator.yaml")
	testkit.NoError(t, os.WriteFile(operator, []byte(document.Encode(document.Tree{
		"apiVersion": "install.istio.io/v1alpha1", "kind": "IstioOperator",
		"spec": document.Tree{"profile": "compact", "hub": "fairlead", "tag": "dev", "values": document.Tree{"configWatcher": document.Tree{
			// The servers of keys have ports that the kernel gives them, and change their keys within a scenario.
			"jwksEgress":              []any{document.Tree{"to": []any{document.Tree{"ipBlock": document.Tree{"cidr": "0.0.0.0/0"}}}}},
			"jwksResolverExtraRootCA": string(issuer.CertPEM),
			"extraContainerArgs":      []any{"--jwks-min-interval=" + harness.KeysInterval.String()},
		}}},
	})), 0o600))
	fairlead("install", "-y", "-f", operator)
	t.Cleanup(func() { fairlead("uninstall", "--purge", "--with-contents", "-y") })
	api, err := apiserver.Connect(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("fairlead install is done after %s", time.Since(began).Round(time.Millisecond))
	return place{api: api, node: &harness.Node{
		Clientset: client, Root: os.Getenv("CLUSTER_ROOT"), Image: echoImage, Issuer: issuer, Resolver: clusterDNS, Outside: outsideDNS,
	}}
}

// inCluster are the scenarios that run in a cluster, of those that can the sample. The table gets those that cannot,
// with the reason.
func inCluster(t *testing.T, all []*format.Scenario, table *report.Report) []*format.Scenario {
	t.Helper()
	var can []*format.Scenario
	for _, s := range all {
		if why := eligible.NeedsMachines(s); why != "" {
			table.Add(report.Result{Topology: s.Topology.Name, Name: s.Name, Skipped: why})
			continue
		}
		can = append(can, s)
	}
	chosen := sampled(can, *sample)
	t.Logf("%d of %d scenarios can run in a cluster, and %d do", len(can), len(all), len(chosen))
	if len(chosen) < *sample || len(chosen) == 0 {
		t.Fatalf("only %d of %d scenarios can run in a cluster, and -sample asks for %d", len(can), len(all), *sample)
	}
	return chosen
}

// sampled are n of the scenarios that -share-by chooses, in their order; all of them if n is 0.
func sampled(all []*format.Scenario, n int) []*format.Scenario {
	if n == 0 || n >= len(all) {
		return all
	}
	drawn := slices.SortedFunc(slices.Values(all), func(a, b *format.Scenario) int {
		return cmp.Or(cmp.Compare(draw(a.Name), draw(b.Name)), strings.Compare(a.Name, b.Name))
	})[:n]
	return slices.DeleteFunc(slices.Clone(all), func(s *format.Scenario) bool { return !slices.Contains(drawn, s) })
}

// TestSample: a sample has as many as it is to have, always the same for one text, and in the order of all.
func TestSample(t *testing.T) {
	scenarios := all(t, "cases", "examples")
	by := *shareBy
	t.Cleanup(func() { *shareBy = by })
	names := func(n int) (out []string) {
		for _, s := range sampled(scenarios, n) {
			out = append(out, s.Name)
		}
		return out
	}
	if got := names(0); len(got) != len(scenarios) {
		t.Errorf("without a number %d of %d scenarios run", len(got), len(scenarios))
	}
	*shareBy = "one commit"
	one, again, more := names(60), names(60), names(61)
	if len(one) != 60 || !slices.Equal(one, again) {
		t.Errorf("60 are %d, and again %d: %v", len(one), len(again), one)
	}
	if n := len(slices.DeleteFunc(more, func(name string) bool { return slices.Contains(one, name) })); n != 1 {
		t.Errorf("61 have %d that are not among 60", n)
	}
	*shareBy = "another commit"
	if slices.Equal(one, names(60)) {
		t.Error("another commit has the same sample")
	}
}

// TestEnoughRunInACluster: 60 of the scenarios can.
func TestEnoughRunInACluster(t *testing.T) {
	can := 0
	for _, s := range all(t, "cases", "examples") {
		if eligible.NeedsMachines(s) == "" {
			can++
		}
	}
	if can < 120 {
		t.Errorf("only %d scenarios can run in a cluster: a sample of 60 would be nearly always the same", can)
	}
}
