package decisions

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/gate"
	"fairlead.dev/tests/internal/policygen"
)

var (
	seed   = flag.Uint64("seed", 1, "seed of the drawn sets and requests")
	drawn  = flag.Int("drawn", 100, "how many sets of policies are drawn")
	perSet = flag.Int("requests", 20, "how many requests each set gets")
)

// inputsVariable names the directory of the inputs of Istio's tests.
const inputsVariable = "ISTIO_AUTHZ_TESTDATA"

// bench is what all comparisons need.
type bench struct {
	*comparison
	istio    string
	programs binaries.Set
	began    time.Time
}

func newBench(t *testing.T) *bench {
	t.Helper()
	bin := os.Getenv("ISTIO_BIN")
	if bin == "" {
		t.Skip("ISTIO_BIN names no directory with Istio's pilot-discovery: run `make oracle`")
	}
	b := newOwn(t)
	b.istio = bin
	return b
}

// newOwn is a bench without Istio.
func newOwn(t *testing.T) *bench {
	t.Helper()
	programs := testkit.Must(binaries.Find(t.Context(), t.TempDir()))(t)
	ca := testkit.PKI(t)
	return &bench{&comparison{
		envoy: programs.Envoy, keys: testkit.Must(policygen.NewKeys())(t), ca: ca, certificates: gate.NewCertificates(t, ca), seed: *seed,
		perSet: *perSet,
	}, "", programs, time.Now()}
}

// start runs the control planes and the providers of a mesh.
func (b *bench) start(t *testing.T, m Mesh) (*istiod, *fairlead) {
	t.Helper()
	b.serveProviders(t, m)
	istio, ours := startIstiod(t, b.istio, m), startFairlead(t, b.programs, m)
	t.Logf("both control planes are ready after %s", time.Since(b.began).Round(time.Millisecond))
	return istio, ours
}

func (b *bench) serveProviders(t *testing.T, m Mesh) {
	t.Helper()
	b.clusters = nil
	at := serveProviders(t, m.Providers)
	for _, p := range m.Providers {
		c := at[p.Name]
		c.Name = fmt.Sprintf("outbound|%d||%s", providerPort, p.Service)
		b.clusters = append(b.clusters, c)
	}
}

// compare asks about sets; every difference needs a row.
func (b *bench) compare(t *testing.T, sets []policygen.Set, istio, ours side) {
	t.Helper()
	answers, rows, unlisted := map[string]int{}, map[string]int{}, 0
	b.ask(t, sets, [gate.Sides]side{istio, ours}, b.drawn, func(a Answered) {
		answers[status(a.Answers[0])]++
		switch {
		case a.Same():
		case a.Row != nil:
			rows[a.Row.What]++
		default:
			if unlisted++; unlisted <= 20 {
				t.Error(a)
			}
		}
	})
	t.Logf("%d sets, answers of Istio %v, listed differences %v, others %d, after %s", len(sets), answers, rows, unlisted,
		time.Since(b.began).Round(time.Millisecond))
	for _, kind := range []string{"200", "401", "403", "connected", "refused"} {
		if len(sets) >= 100 && answers[kind] < len(sets)/10 {
			t.Errorf("only %d answers are %s: the draw says little", answers[kind], kind)
		}
	}
}

func status(a gate.Answer) string {
	a.Seen = ""
	return a.String()
}

// TestDraws asks about random sets of policies; a quarter of them also as older proxies get their filters, within
// listeners.
func TestDraws(t *testing.T) {
	b := newBench(t)
	m := Mesh{TrustDomain: policygen.TrustDomain, Aliases: []string{policygen.OldDomain}, Providers: drawnProviders}
	for n := range *drawn {
		m.Sets = append(m.Sets, policygen.Draw(*seed, n, b.keys))
	}
	istio, ours := b.start(t, m)
	b.compare(t, m.Sets, istio.filters, ours.beside)
	b.seed += 1000 // other requests
	b.compare(t, m.Sets[:(len(m.Sets)+3)/4], istio.filters, ours.within)
}

// TestInputs asks about the inputs of the tests of Istio's builder, with the trust domains of those tests.
func TestInputs(t *testing.T) {
	b := newBench(t)
	dir := os.Getenv(inputsVariable)
	if dir == "" {
		t.Skip(inputsVariable + " names no directory with the inputs of Istio's tests: run `make oracle`")
	}
	for _, m := range []Mesh{
		{TrustDomain: policygen.TrustDomain, Aliases: []string{policygen.OldDomain}},
		{TrustDomain: "td1", Aliases: []string{"cluster.local", "some-td"}},
		{TrustDomain: "td1", Aliases: []string{"foobar"}},
		{TrustDomain: "new-td", Aliases: []string{"old-td", "some-trustdomain"}},
	} {
		t.Run(fmt.Sprint(m.TrustDomain, m.Aliases), func(t *testing.T) {
			m.Providers, m.Sets = inputProviders, inputs(t, dir)
			istio, ours := b.start(t, m)
			b.compare(t, m.Sets, istio.filters, ours.beside)
		})
	}
}

// TestRowsHold: a row of the differences whose example shows none has to go.
func TestRowsHold(t *testing.T) {
	b := newBench(t)
	m := Mesh{TrustDomain: policygen.TrustDomain, Providers: drawnProviders, Sets: examples(t)}
	istio, ours := b.start(t, m)
	requests := func(s policygen.Set) []policygen.Request {
		n, err := strconv.Atoi(s.Namespace[1:])
		testkit.NoError(t, err)
		return []policygen.Request{Differences[n].Example.Request}
	}
	for name, form := range map[string]side{"beside listeners": ours.beside, "within": ours.within} {
		b.ask(t, m.Sets, [gate.Sides]side{istio.filters, form}, requests, func(a Answered) {
			n, err := strconv.Atoi(a.Set.Namespace[1:])
			testkit.NoError(t, err)
			d := Differences[n]
			if got := [2]string{status(a.Answers[0]), status(a.Answers[1])}; got != [2]string{d.Example.Istio, d.Example.Fairlead} {
				t.Errorf("%s: filters %s listeners: Istio answers %s and Fairlead %s; the row says %s and %s", d.What, name, got[0], got[1],
					d.Example.Istio, d.Example.Fairlead)
			}
			if d.covers != nil && a.Row == nil {
				t.Errorf("%s: the row does not explain its own example", d.What)
			}
		})
	}
}

func TestPage(t *testing.T) {
	testkit.Golden(t, "../../../docs/reference/authorization-differences.md", []byte(Page()))
}
