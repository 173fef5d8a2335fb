package networking

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

func (c Checker) loadBalancer(at string, lb *networking.LoadBalancerSettings, outlier *networking.OutlierDetection) {
	if lb == nil {
		return
	}
	c.consistentHash(at+".consistentHash", lb.GetConsistentHash())
	c.LocalityLB(at+".localityLbSetting", lb.LocalityLbSetting)
	if l := lb.LocalityLbSetting; outlier == nil && len(l.GetFailover())+len(l.GetFailoverPriority()) > 0 {
		c.Warn(at+".localityLbSetting", "nothing fails over without outlierDetection beside the load balancer", "set outlierDetection")
	}
	c.ZoneAware(at+".zoneAwareLbSetting", lb.ZoneAwareLbSetting)
	if lb.LocalityLbSetting != nil && lb.ZoneAwareLbSetting != nil {
		c.Fail(at+".zoneAwareLbSetting", nil, "cannot be combined with localityLbSetting", "keep one of them")
	}
	//nolint:staticcheck // deprecated in Istio, still served
	if old := lb.WarmupDurationSecs; old != nil {
		c.FailIf(c.DurationRange(at+".warmupDurationSecs", old) && old.AsDuration() < 0, at+".warmupDurationSecs", old.AsDuration(), "negative",
			"use 0s or more")
		c.WarnIf(lb.Warmup != nil, at+".warmupDurationSecs", "warmup comes before it", "remove it")
	}
	//nolint:staticcheck // deprecated in Istio, still served
	warmup := lb.WarmupDurationSecs != nil || lb.Warmup != nil
	if w := lb.Warmup; w != nil {
		c.FailIf(w.Duration == nil, at+".warmup.duration", nil, "missing", `set how long an endpoint warms up, like "30s"`)
		c.Duration(at+".warmup.duration", w.Duration)
		if w.MinimumPercent != nil {
			c.Percent(at+".warmup.minimumPercent", w.MinimumPercent.Value)
		}
		if w.Aggression != nil && !(w.Aggression.Value > 0) {
			c.Fail(at+".warmup.aggression", w.Aggression.Value, "not above 0", "use 1 (linear) or more to begin slowly, less to begin fast")
		}
	}
	if warmup {
		switch s := lb.GetSimple(); {
		case lb.GetConsistentHash() != nil, s == networking.LoadBalancerSettings_RANDOM, s == networking.LoadBalancerSettings_PASSTHROUGH:
			c.Warn(at+".warmup", "warm-up works only with ROUND_ROBIN and LEAST_REQUEST", "change simple, or remove the warm-up")
		}
	}
}

func (c Checker) consistentHash(at string, h *networking.LoadBalancerSettings_ConsistentHashLB) {
	if h == nil {
		return
	}
	const spread = "nothing is hashed: requests go to random endpoints"
	switch k := h.HashKey.(type) {
	case nil:
		c.Remark(at, spread, "set httpHeaderName, httpCookie, useSourceIp or httpQueryParameterName")
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName:
		c.headerName(at+".httpHeaderName", k.HttpHeaderName)
	case *networking.LoadBalancerSettings_ConsistentHashLB_UseSourceIp:
		c.RemarkIf(!k.UseSourceIp, at+".useSourceIp", spread, "set it to true, or another key")
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpQueryParameterName:
		c.FailIf(k.HttpQueryParameterName == "", at+".httpQueryParameterName", "", "parameter name is empty", "name the parameter")
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpCookie:
		c.cookie(at+".httpCookie", k.HttpCookie)
	}
	if m := h.GetMaglev(); m != nil && (m.TableSize >= largestMaglev || !prime(m.TableSize)) {
		c.Fail(at+".maglev.tableSize", m.TableSize, "not a prime number below 5000011", "use a prime such as 65537")
	}
	//nolint:staticcheck // deprecated in Istio, still served
	if old := h.MinimumRingSize; old != 0 {
		c.Remark(at+".minimumRingSize", "deprecated", "use ringHash.minimumRingSize")
		c.FailIf(h.HashAlgorithm != nil, at+".minimumRingSize", old, "cannot be combined with ringHash or maglev", "remove it")
	}
	//nolint:staticcheck // see above
	for path, size := range map[string]uint64{at + ".ringHash.minimumRingSize": h.GetRingHash().GetMinimumRingSize(),
		at + ".minimumRingSize": h.MinimumRingSize} {
		c.FailIf(size > 8<<20, path, size, "larger than Envoy's largest ring, 8388608", "use a smaller ring")
	}
}

// largestMaglev is the size of Envoy's largest Maglev table. Istio's webhook refuses it.
const largestMaglev = 5000011

func (c Checker) cookie(at string, k *networking.LoadBalancerSettings_ConsistentHashLB_HTTPCookie) {
	if k.GetName() == "" {
		c.Fail(at+".name", nil, "missing", "name the cookie")
	} else {
		c.token(at+".name", k.Name, "cookie name")
	}
	if k.GetTtl() != nil && c.DurationRange(at+".ttl", k.Ttl) && k.Ttl.AsDuration() < 0 {
		c.Fail(at+".ttl", k.Ttl.AsDuration(), "negative", "use 0s for a session cookie, or more")
	}
	c.cookiePart(at+".path", k.GetPath())
	seen := map[string]int{}
	for i, a := range k.GetAttributes() {
		ap := manifest.Index(at+".attributes", i)
		if first, dup := check.Again(seen, a.GetName(), i); dup {
			c.Fail(ap+".name", a.GetName(), fmt.Sprintf("same name as attributes[%d]", first), "keep one of them")
		}
		c.token(ap+".name", a.GetName(), "cookie attribute")
		c.cookiePart(ap+".value", a.GetValue())
	}
}

// cookiePart checks the value of a cookie attribute, which a semicolon would end.
func (c Checker) cookiePart(at, s string) {
	if c.Printable(at, s) && strings.Contains(s, ";") {
		c.Fail(at, s, "a semicolon ends the value", "write what follows as an attribute of its own")
	}
}

// prime reports whether Envoy accepts n as the size of a Maglev table: a prime, or 1.
func prime(n uint64) bool {
	if n < 1 {
		return false
	}
	for d := uint64(2); d*d <= n; d++ {
		if n%d == 0 {
			return false
		}
	}
	return true
}

// topologyLabels name region, zone and subzone of a workload.
var topologyLabels = []string{"topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/subzone"}

// LocalityLB checks how requests are shared among places.
func (c Checker) LocalityLB(at string, l *networking.LocalityLoadBalancerSetting) {
	if l == nil {
		return
	}
	c.FailIf(len(l.Distribute) > 0 && len(l.Failover) > 0, at+".distribute", nil, "cannot be combined with failover", "keep one of them")
	c.WarnIf(len(l.Distribute) > 0 && len(l.FailoverPriority) > 0, at+".failoverPriority",
		"distribute decides where requests go", "keep one of them")
	from := localities{}
	for dp, d := range manifest.Items(at+".distribute", l.Distribute) {
		c.locality(dp+".from", d.From, from)
		total := uint64(0)
		// The most general go last: the map has no order.
		to := localities{}
		for _, dest := range slices.SortedFunc(maps.Keys(d.To), general) {
			tp := manifest.Field(dp+".to", dest)
			c.locality(tp, dest, to)
			if w := d.To[dest]; w < 1 || w > 100 {
				c.Fail(tp, w, "weight is no percentage", "use 1 to 100")
			}
			total += uint64(d.To[dest])
		}
		c.FailIf(total != 100, dp+".to", total, "weights do not sum to 100", "make them sum to 100")
	}
	first := map[string]int{}
	for i, f := range l.Failover {
		fp := manifest.Index(at+".failover", i)
		c.failover(fp, f.From, f.To)
		if j, again := first[f.From]; again {
			c.Warn(fp, fmt.Sprintf("a region fails over to one other: that of failover[%d]", j), "keep one of them")
		} else {
			first[f.From] = i
		}
	}
	for ip, p := range manifest.Items(at+".failoverPriority", l.FailoverPriority) {
		c.FailIf(len(l.Failover) > 0 && slices.Contains(topologyLabels, p), ip, p, "orders places, as failover does", "keep one of them")
		if key, value, _ := strings.Cut(p, "="); !check.LabelKey(key) || !check.LabelValue(value) {
			c.noWorkload(ip)
		}
	}
}

func (c Checker) failover(at, from, to string) {
	if from == to {
		c.Fail(at, from, "fails over to itself", "name another region in to")
		return
	}
	for _, part := range []struct{ name, value string }{{"from", from}, {"to", to}} {
		switch {
		case part.value == "":
			c.Warn(at, part.name+" is missing", "name a region")
		case strings.ContainsAny(part.value, "*/"):
			c.Fail(at+"."+part.name, part.value, "not a region", "failover is between whole regions: remove zone and wildcard")
		}
	}
}

// localities are those already named. Each is also stored under the region, and the region and zone, that it lies in.
type localities map[string]string

// locality checks a locality and that none already named overlaps with it: "*" covers all that follow, a region or zone
// covers all that lies in it, and a locality within it covers the region or zone.
func (c Checker) locality(at, s string, before localities) {
	parts := strings.SplitN(s, "/", 3)
	for i, p := range parts {
		if p == "" {
			c.Fail(at, s, "part of the locality is empty", fmt.Sprintf("write region/zone/subzone without gaps; part %d is empty", i+1))
			return
		}
	}
	if i := strings.Index(s, "*"); i >= 0 && i != len(s)-1 {
		c.Fail(at, s, "wildcard is not the last part", `write it like "region/*"`)
		return
	}
	if last := parts[len(parts)-1]; strings.Contains(last, "/") || strings.Contains(last, "*") && last != "*" {
		c.Warn(at, "no workload runs in such a place",
			`write "region", "region/zone", "region/zone/subzone", or "*" in place of the last part`)
	}
	if other := before.covering(parts); other != "" {
		c.Fail(at, s, "overlaps with "+other, "name the more special first, or make the localities disjoint")
	}
	before[s] = s
	for i := range parts[:len(parts)-1] {
		before[strings.Join(parts[:i+1], "/")+"/"] = s
	}
}

func (p localities) covering(parts []string) string {
	if p["*"] != "" {
		return "*"
	}
	for i := range parts {
		at := strings.Join(parts[:i+1], "/")
		last := i == len(parts)-1
		switch {
		case p[at] != "":
			return at
		case last && i < 2 && p[at+"/"] != "":
			return p[at+"/"]
		case !last && p[at+"/*"] != "":
			return at + "/*"
		}
	}
	return ""
}

// general orders localities from the special to the general.
func general(a, b string) int {
	return cmp.Or(
		cmp.Compare(strings.Count(a, "*"), strings.Count(b, "*")),
		cmp.Compare(strings.Count(b, "/"), strings.Count(a, "/")),
		strings.Compare(a, b),
	)
}
