package authzview

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/meshclient"
)

// Counts are what the proxies of some workloads have counted.
type Counts struct {
	// Rules is how many HTTP requests each rule has matched, by its name. Dry runs are among them. RulesOf has the
	// workloads whose proxies count them, by ID, and Without says which do not.
	Rules   map[string]uint64
	RulesOf map[string]bool
	Without []string
	// DryRun has the requests and connections that a dry run would have refused.
	DryRun []Refusals
	// Asked is the number of proxies that have answered, and Silent says which have not.
	Asked  int
	Silent []string
}

// Refusals counts the requests and TCP connections that a dry run would have refused.
type Refusals struct {
	// Action is "DENY", or "ALLOW" for requests that no ALLOW rule in dry run matches.
	Action string `json:"action"`
	// Policy is "NAMESPACE/NAME" and Rule the place of the rule that would have refused; not set for ALLOW, and where
	// the proxy counts no rules.
	Policy string `json:"policy,omitempty"`
	Rule   *int   `json:"rule,omitempty"`
	// Past is true if what refused is no longer in dry run: proxies still count from before.
	Past bool `json:"past,omitempty"`
	// Caller is an identity; empty for one without a certificate, "unknown" where the proxy has counted none.
	Caller   string `json:"caller,omitempty"`
	Workload string `json:"workload"`
	Requests uint64 `json:"requests"`
}

// unknown stands for callers where proxies have counted none.
const unknown = "unknown"

// Names of statistics. perRule is what the HTTP filter's option track_per_rule_stats counts, and total counts the
// requests and connections that shadow rules of one action refuse: a number that is always there, so that what refused
// misses is seen.
var (
	perRule = regexp.MustCompile(`\.rbac\.(?:.+\.)?policy\.(?:istio-ext-authz-.*-)?(ns\[[^\]]*\]-policy\[[^\]]*\]-rule\[\d+\])[^.]*\.(?:shadow_)?(?:allowed|denied)$`)
	total   = regexp.MustCompile(`\brbac\.istio_dry_run_(allow|deny)_\.(?:policy\.(.*)\.)?shadow_denied$`)
	refused = regexp.MustCompile(`^` + contract.DryRunMetric + `\.` + contract.DryRunDeny + `\.(.*)\.` + contract.DryRunAllow + `\.(\w*)\.` +
		contract.DryRunCaller + `\.(.*)$`)
)

// statsFilter asks for all of them, and nothing else, of an Envoy.
const statsFilter = `(\brbac\..*(policy\.|shadow_denied)|` + contract.DryRunMetric + `)`

// Examples of their names, by which it is seen whether a proxy is told to keep them.
const (
	aRule  = "http.inbound_0.0.0.0_80.rbac.policy.ns[a]-policy[b]-rule[0].denied"
	aTotal = "http.inbound_0.0.0.0_80.rbac.istio_dry_run_deny_.shadow_denied"
)

// maxAsked bounds the proxies that are asked at once.
const maxAsked = 8

// Count asks the Envoys of workloads. It is an error if none answers.
func Count(ctx context.Context, mesh *meshclient.Mesh, workloads []*Workload) (*Counts, error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	out := &Counts{Rules: map[string]uint64{}, RulesOf: map[string]bool{}}
	var errs []error
	turns := make(chan struct{}, maxAsked)
	for _, w := range workloads {
		switch w.Proxy {
		case Sidecar, Gateway:
		case Proxyless:
			out.Silent = append(out.Silent, w.ID()+": a gRPC program without an Envoy counts nothing")
			continue
		default:
			continue
		}
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			found, err := statsOf(ctx, mesh, w)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				out.Silent = append(out.Silent, fmt.Sprintf("%s: %v", w.ID(), err))
				return
			}
			out.Asked++
			out.add(w, found)
		})
	}
	all.Wait()
	slices.Sort(out.Silent)
	slices.Sort(out.Without)
	slices.SortFunc(out.DryRun, func(a, b Refusals) int {
		return cmp.Or(strings.Compare(a.Action, b.Action), strings.Compare(a.Policy, b.Policy), cmp.Compare(a.rule(), b.rule()),
			strings.Compare(a.Caller, b.Caller), strings.Compare(a.Workload, b.Workload))
	})
	switch {
	case out.Asked > 0:
		return out, nil
	case len(errs) > 0:
		return nil, errors.Join(errs...)
	}
	return nil, errors.New("no proxy with an Envoy is connected; `fairlead proxy-status` lists those that are")
}

// stats are an Envoy's counters, and whether it keeps those of rules and of dry runs.
type stats struct {
	values        map[string]uint64
	rules, totals bool
}

func statsOf(ctx context.Context, mesh *meshclient.Mesh, w *Workload) (*stats, error) {
	admin, err := mesh.Admin(ctx, w.Name+"."+w.Namespace, "")
	if err != nil {
		return nil, err
	}
	out := &stats{}
	if out.values, err = admin.Stats(ctx, statsFilter); err != nil {
		return nil, err
	}
	keeps, err := admin.Kept(ctx)
	if err != nil {
		return nil, err
	}
	out.rules, out.totals = keeps(aRule), keeps(aTotal)
	return out, nil
}

// add adds what one Envoy has counted.
func (c *Counts) add(w *Workload, found *stats) {
	if found.rules {
		c.RulesOf[w.ID()] = true
	} else {
		c.Without = append(c.Without, w.ID()+": its Envoy is told to keep no counts of rules; an agent of this release tells it to")
	}
	if !found.totals {
		c.Silent = append(c.Silent, w.ID()+": its Envoy is told to keep no counts of dry runs; an agent of this release tells it to")
	}
	// By action: what filters have refused in all, by rule where that is known, and what was counted by caller.
	all, byRule, known := map[string]uint64{}, map[string]uint64{}, map[string]uint64{}
	// An Envoy counts apart what DENY and ALLOW say of one request: the sum counts here.
	sums := map[[3]string]uint64{}
	refuse := func(action, rule, caller string, n uint64) {
		if known[action] += n; rule != "" {
			known[rule] += n
		}
		if n > 0 {
			sums[[3]string{action, rule, caller}] += n
		}
	}
	for name, n := range found.values {
		if m := refused.FindStringSubmatch(name); m != nil {
			if m[1] != "" {
				refuse(authz.Deny, m[1], m[3], n)
			}
			if m[2] == "denied" {
				refuse(authz.Allow, "", m[3], n)
			}
			continue
		}
		if m := perRule.FindStringSubmatch(name); m != nil {
			c.Rules[m[1]] += n
		}
		if m := total.FindStringSubmatch(name); m != nil && m[2] == "" {
			all[strings.ToUpper(m[1])] += n
		} else if m != nil {
			byRule[m[2]] += n
		}
	}
	for rule, n := range byRule {
		refuse(authz.Deny, rule, unknown, n-min(n, known[rule]))
	}
	for action, n := range all {
		refuse(action, "", unknown, n-min(n, known[action]))
	}
	for k, n := range sums {
		r := Refusals{Action: k[0], Caller: k[2], Workload: w.ID(), Requests: n}
		if id := named.FindStringSubmatch(k[1]); id != nil {
			r.Policy = id[1] + "/" + id[2]
			if index, err := strconv.Atoi(id[3]); err == nil {
				r.Rule = &index
			}
		}
		c.DryRun = append(c.DryRun, r)
	}
}

// rule is the place of the rule, -1 for none.
func (r Refusals) rule() int {
	if r.Rule == nil {
		return -1
	}
	return *r.Rule
}
