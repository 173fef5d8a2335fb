package gatewayapi

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/userns"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/netns"
)

// inputsVariable names the directory of the inputs of Istio's tests.
const inputsVariable = "ISTIO_GATEWAY_TESTDATA"

var (
	only = flag.String("input", "", "the one input of Istio's that is compared; empty for all")
	most = flag.Int("most", 200, "how many unlisted differences are printed")
)

// TestMain makes the user root of namespaces of its own.
func TestMain(m *testing.M) { userns.Main(m) }

// What a run must have compared to say something.
const (
	fewestInputs     = 50
	fewestConditions = 1000
	fewestServed     = 2000
)

// workers is how many workloads are asked at a time.
const workers = 4

// TestSameAnswers gives all inputs of Istio's tests to istiod, and then to Fairlead, by one API server, so that objects
// have one age: statuses and answers to requests are the same, or a row of differences has the reason.
func TestSameAnswers(t *testing.T) {
	dir, istio := os.Getenv(inputsVariable), os.Getenv("ISTIO_BIN")
	if dir == "" || istio == "" || os.Getenv("KUBE_BIN") == "" {
		t.Skip("ISTIO_BIN, KUBE_BIN or " + inputsVariable + " is not set: run `make oracle`")
	}
	userns.Need(t, netns.Programs...)
	began := time.Now()
	lap := func(what string) { t.Logf("%s after %s", what, time.Since(began).Round(100*time.Millisecond)) }
	a := testkit.Must(newAuthority())(t)
	inputs := testkit.Must(readInputs(dir, a))(t)
	if *only != "" {
		inputs = slices.DeleteFunc(inputs, func(in *input) bool { return in.name != *only })
	}
	ca, s := testkit.PKI(t), kubeapi.Start(t, kubeapi.Options{})
	lap("the API server is ready")
	l := loadAll(t, inputs, s)
	lap("it has the objects")
	b := newBackends(t, inputs, a, testkit.Must(binaries.Find(t.Context(), t.TempDir()))(t).Envoy)
	var said [2]map[string]map[string]string
	var answers [2]map[string]string
	for i, start := range []func() *plane{
		func() *plane { return startIstiod(t, istio, s, ca) }, func() *plane { return startFairlead(t, s, ca) },
	} {
		p := start()
		lap(p.name + " is ready")
		said[i] = testkit.Must(l.statuses(t.Context()))(t)
		lap(p.name + " has written statuses")
		answers[i] = b.ask(t, inputs, p)
		lap(p.name + " has answered")
		p.stop()
		testkit.NoError(t, l.reset(t.Context(), inputs))
	}
	found := &differencesFound{}
	conditions := found.inStatuses(inputs, said)
	for _, q := range keys(answers) {
		if x, y := answers[0][q], answers[1][q]; x != y {
			found.add(q, x, y)
		}
	}
	t.Logf("%d inputs, %d conditions and counts of statuses, %d answers, %d differences", len(inputs), conditions, len(keys(answers)),
		len(found.lines))
	served := 0
	for _, answer := range answers[0] {
		if strings.Contains(answer, "200 ") {
			served++
		}
	}
	t.Logf("%d of Istio's answers come from a backend", served)
	if *only == "" && (len(inputs) < fewestInputs || conditions < fewestConditions || served < fewestServed) {
		t.Errorf("want at least %d inputs, %d conditions and %d answers of backends: less says little", fewestInputs, fewestConditions,
			fewestServed)
	}
	found.judge(t)
}

// keys are those of either.
func keys[V any](both [2]map[string]V) []string {
	all := maps.Clone(both[0])
	maps.Copy(all, both[1])
	return slices.Sorted(maps.Keys(all))
}

// loadAll applies all inputs, and a last Gateway.
func loadAll(t *testing.T, inputs []*input, s *kubeapi.Server) *loader {
	t.Helper()
	s.ApplyCRDs(t, kubeapi.MeshCRDs(t), kubeapi.GatewayAPICRDs(t, "experimental"))
	s.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+system+"}}")
	l := testkit.Must(newLoader(s))(t)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for _, in := range inputs {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			refused, err := l.apply(t.Context(), in.objects)
			if err != nil {
				t.Errorf("%s: %v", in.name, err)
			}
			for _, r := range refused {
				t.Logf("%s: refused by the API server: %s", in.name, r)
			}
		})
	}
	wg.Wait()
	// istiod asks whether a gateway may read Secrets.
	s.Grant(t, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:serviceaccounts"},
		kubeapi.Rule("", []string{"secrets"}, "get", "list", "watch"))
	s.Apply(t, marker)
	services := testkit.Must(s.Client(t).CoreV1().Services("").List(t.Context(), metav1.ListOptions{}))(t)
	for _, in := range inputs {
		in.clusterIPs = map[string]netip.Addr{}
		for i := range services.Items {
			if at := services.Items[i].Namespace + "/" + services.Items[i].Name; in.services[at] != nil {
				in.clusterIPs[at] = testkit.Must(netip.ParseAddr(services.Items[i].Spec.ClusterIP))(t)
			}
		}
	}
	return l
}

// differences are what was found.
type differencesFound struct{ lines []string }

// add is about a question or a place in a status, which begins with the input's name.
func (d *differencesFound) add(what, istio, here string) {
	d.lines = append(d.lines, fmt.Sprintf("%s: Istio %s, here %s", what, or(istio, "–"), or(here, "–")))
}

// judge wants a row for every difference, and a difference for every row.
func (d *differencesFound) judge(t *testing.T) {
	t.Helper()
	used, unlisted := map[int]int{}, 0
	slices.Sort(d.lines)
	for _, line := range d.lines {
		i := slices.IndexFunc(differences, func(row difference) bool { return row.lines.MatchString(line) })
		if i >= 0 {
			used[i]++
		} else if unlisted++; unlisted <= *most {
			t.Errorf("differs without a row: %s", line)
		}
	}
	if unlisted > *most {
		t.Errorf("%d differences have no row", unlisted)
	}
	for i, row := range differences {
		t.Logf("%d differences: %s", used[i], row.what)
		if used[i] == 0 && *only == "" {
			t.Errorf("nothing differs any more by the row %q", row.what)
		}
	}
}

// inStatuses compares them, and returns how much there was to compare.
func (d *differencesFound) inStatuses(inputs []*input, said [2]map[string]map[string]string) (lines int) {
	for _, in := range inputs {
		for _, object := range keys(said) {
			rest, ok := strings.CutPrefix(object, in.name+"-")
			if !ok || !in.has(object) {
				continue
			}
			both := [2]map[string]string{said[0][object], said[1][object]}
			for _, place := range keys(both) {
				lines++
				if both[0][place] != both[1][place] {
					d.add(in.name+": "+rest+" "+place, both[0][place], both[1][place])
				}
			}
		}
	}
	return lines
}

// has tells whether an object of statuses is the input's: the names of some begin as others'.
func (in *input) has(object string) bool {
	return slices.ContainsFunc(in.objects, func(o *unstructured.Unstructured) bool {
		return o.GetNamespace()+"/"+o.GetName()+" "+o.GetKind() == object
	})
}

// backends are a network with the backends of all inputs, and machines for Envoys.
type backends struct {
	*echo
	hosts []*netns.Host
	// applications are addresses of the hosts, from which connections to Services go to the sidecar.
	applications []string
	cert         tls.Certificate
	envoy        string
}

const capture = `
table ip capture {
	chain output {
		type nat hook output priority -100;
		ip saddr %s ip daddr 198.19.0.0/16 meta l4proto tcp redirect to :15001
	}
}
`

func newBackends(t *testing.T, inputs []*input, a *authority, envoy string) *backends {
	t.Helper()
	network := testkit.Must(netns.NewNetwork("backends", false))(t)
	t.Cleanup(func() { testkit.NoError(t, network.Hub.Close()) })
	e := &echo{services: map[netip.Addr]string{}, tries: map[string]int{},
		cert: testkit.Must(a.pair("backend", "auth.example.com", "cdn.example.com", "external.example.com"))(t)}
	ports := map[int]bool{}
	for _, in := range inputs {
		for _, s := range in.backends {
			e.services[s.ip] = in.original(s.service)
			for port := range s.ports {
				ports[port] = true
			}
		}
	}
	// As kube-proxy does for what a sidecar passes on.
	services := map[netip.AddrPort][]netip.AddrPort{}
	for _, in := range inputs {
		for _, s := range in.backends {
			for port := range s.ports {
				at := netip.AddrPortFrom(in.clusterIPs[s.service], uint16(port))                       //nolint:gosec // a port
				services[at] = append(services[at], netip.AddrPortFrom(s.ip, uint16(port+portOffset))) //nolint:gosec // a port
			}
		}
	}
	testkit.NoError(t, network.Translate(services))
	testkit.NoError(t, e.listen(t.Context(), network.Hub, slices.Sorted(maps.Keys(ports))))
	b := &backends{echo: e, cert: testkit.Must(a.pair("client"))(t), envoy: envoy}
	for i := range workers {
		h := testkit.Must(netns.New(fmt.Sprintf("gateway-%d", i)))(t)
		testkit.NoError(t, network.Plug(h))
		testkit.NoError(t, h.In(func() error { // connections must not take the ports of listeners
			return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("50000 60999"), 0)
		}))
		application := netip.AddrFrom4([4]byte{10, 97, 0, byte(i + 1)})
		testkit.NoError(t, h.AddAddress(application))
		testkit.NoError(t, h.Run(fmt.Sprintf(capture, application), "nft", "-f", "-"))
		b.applications = append(b.applications, application.String())
		t.Cleanup(func() { testkit.NoError(t, h.Close()) })
		b.hosts = append(b.hosts, h)
	}
	return b
}

// ask asks an Envoy of each workload of all inputs, and returns the answers by question.
func (b *backends) ask(t *testing.T, inputs []*input, p *plane) map[string]string {
	t.Helper()
	type job struct {
		in *input
		of *proxy
	}
	jobs, out := make(chan job), map[string]string{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range b.hosts {
		wg.Go(func() {
			for j := range jobs {
				began := time.Now()
				answers, err := b.askOne(t.Context(), i, j.in, j.of, p)
				t.Logf("%s: %s/%s has given %d answers in %s", p.name, j.of.namespace, j.of.service, len(answers),
					time.Since(began).Round(time.Millisecond))
				if err != nil {
					t.Errorf("%s: %v", j.in.name, err)
				}
				mu.Lock()
				for q, a := range answers {
					out[j.in.name+": "+j.in.original(j.of.namespace)+"/"+j.of.service+" "+q] = a
				}
				mu.Unlock()
			}
		})
	}
	for _, in := range inputs {
		for _, p := range in.proxies {
			jobs <- job{in, p}
		}
	}
	close(jobs)
	wg.Wait()
	return out
}

func (b *backends) askOne(ctx context.Context, host int, in *input, of *proxy, p *plane) (map[string]string, error) {
	r, err := p.start(ctx, b.hosts[host], b.envoy, of)
	if err != nil {
		return nil, err
	}
	defer r.close()
	out := map[string]string{}
	c := &client{running: r, echo: b.echo, cert: b.cert, name: fmt.Sprint(p.name, in.name, of.namespace, of.service, "-"),
		application: b.applications[host]}
	questions := in.questions(of)
	if of.sidecar() {
		questions = in.calls(of)
	}
	for _, q := range questions {
		maps.Copy(out, c.ask(ctx, q))
	}
	if text := r.rejected(); text != "" {
		out["refused configuration"] = text
	}
	return out, nil
}
