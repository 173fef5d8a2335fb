package validate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

func (c *checker) loadBalancer(at string, lb *networking.LoadBalancerSettings, outlier *networking.OutlierDetection) {
	if lb == nil {
		return
	}
	c.consistentHash(at+".consistentHash", lb.GetConsistentHash())
	c.localityLB(at+".localityLbSetting", lb.LocalityLbSetting)
	if l := lb.LocalityLbSetting; outlier == nil && len(l.GetFailover())+len(l.GetFailoverPriority()) > 0 {
		c.warn(at+".localityLbSetting", verdict{"nothing fails over without outlierDetection beside the load balancer", "set outlierDetection"})
	}
	c.zoneAware(at+".zoneAwareLbSetting", lb.ZoneAwareLbSetting)
	if lb.LocalityLbSetting != nil && lb.ZoneAwareLbSetting != nil {
		c.fail(at+".zoneAwareLbSetting", nil, "cannot be combined with localityLbSetting", "keep one of them")
	}
	//nolint:staticcheck // deprecated in Istio, still served
	if old := lb.WarmupDurationSecs; old != nil {
		c.failIf(c.durationRange(at+".warmupDurationSecs", old) && old.AsDuration() < 0, at+".warmupDurationSecs", old.AsDuration(), "negative",
			"use 0s or more")
		c.warnIf(lb.Warmup != nil, at+".warmupDurationSecs", verdict{"warmup comes before it", "remove it"})
	}
	//nolint:staticcheck // deprecated in Istio, still served
	warmup := lb.WarmupDurationSecs != nil || lb.Warmup != nil
	if w := lb.Warmup; w != nil {
		c.failIf(w.Duration == nil, at+".warmup.duration", nil, "missing", `set how long an endpoint warms up, like "30s"`)
		c.duration(at+".warmup.duration", w.Duration)
		if w.MinimumPercent != nil {
			c.percent(at+".warmup.minimumPercent", w.MinimumPercent.Value)
		}
		if w.Aggression != nil && !(w.Aggression.Value > 0) {
			c.fail(at+".warmup.aggression", w.Aggression.Value, "not above 0", "use 1 (linear) or more to begin slowly, less to begin fast")
		}
	}
	if warmup {
		switch s := lb.GetSimple(); {
		case lb.GetConsistentHash() != nil, s == networking.LoadBalancerSettings_RANDOM, s == networking.LoadBalancerSettings_PASSTHROUGH:
			c.warn(at+".warmup", verdict{"warm-up works only with ROUND_ROBIN and LEAST_REQUEST", "change simple, or remove the warm-up"})
		}
	}
}

func (c *checker) consistentHash(at string, h *networking.LoadBalancerSettings_ConsistentHashLB) {
	if h == nil {
		return
	}
	const spread = "nothing is hashed: requests go to random endpoints"
	switch k := h.HashKey.(type) {
	case nil:
		c.remark(at, spread, "set httpHeaderName, httpCookie, useSourceIp or httpQueryParameterName")
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName:
		c.headerName(at+".httpHeaderName", k.HttpHeaderName)
	case *networking.LoadBalancerSettings_ConsistentHashLB_UseSourceIp:
		c.remarkIf(!k.UseSourceIp, at+".useSourceIp", spread, "set it to true, or another key")
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpQueryParameterName:
		c.failIf(k.HttpQueryParameterName == "", at+".httpQueryParameterName", "", "parameter name is empty", "name the parameter")
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpCookie:
		c.cookie(at+".httpCookie", k.HttpCookie)
	}
	if m := h.GetMaglev(); m != nil && (m.TableSize >= largestMaglev || !prime(m.TableSize)) {
		c.fail(at+".maglev.tableSize", m.TableSize, "not a prime number below 5000011", "use a prime such as 65537")
	}
	//nolint:staticcheck // deprecated in Istio, still served
	if old := h.MinimumRingSize; old != 0 {
		c.remark(at+".minimumRingSize", "deprecated", "use ringHash.minimumRingSize")
		c.failIf(h.HashAlgorithm != nil, at+".minimumRingSize", old, "cannot be combined with ringHash or maglev", "remove it")
	}
	//nolint:staticcheck // see above
	for path, size := range map[string]uint64{at + ".ringHash.minimumRingSize": h.GetRingHash().GetMinimumRingSize(),
		at + ".minimumRingSize": h.MinimumRingSize} {
		c.failIf(size > 8<<20, path, size, "larger than Envoy's largest ring, 8388608", "use a smaller ring")
	}
}

// largestMaglev is the size of Envoy's largest Maglev table. Istio's webhook refuses it.
const largestMaglev = 5000011

func (c *checker) cookie(at string, k *networking.LoadBalancerSettings_ConsistentHashLB_HTTPCookie) {
	if k.GetName() == "" {
		c.fail(at+".name", nil, "missing", "name the cookie")
	} else {
		c.token(at+".name", k.Name, "cookie name")
	}
	if k.GetTtl() != nil && c.durationRange(at+".ttl", k.Ttl) && k.Ttl.AsDuration() < 0 {
		c.fail(at+".ttl", k.Ttl.AsDuration(), "negative", "use 0s for a session cookie, or more")
	}
	c.cookiePart(at+".path", k.GetPath())
	seen := map[string]int{}
	for i, a := range k.GetAttributes() {
		ap := index(at+".attributes", i)
		if first, dup := again(seen, a.GetName(), i); dup {
			c.fail(ap+".name", a.GetName(), fmt.Sprintf("same name as attributes[%d]", first), "keep one of them")
		}
		c.token(ap+".name", a.GetName(), "cookie attribute")
		c.cookiePart(ap+".value", a.GetValue())
	}
}

// cookiePart checks the value of a cookie attribute, which a semicolon would end.
func (c *checker) cookiePart(at, s string) {
	if c.printable(at, s) && strings.Contains(s, ";") {
		c.fail(at, s, "a semicolon ends the value", "write what follows as an attribute of its own")
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

func (c *checker) localityLB(at string, l *networking.LocalityLoadBalancerSetting) {
	if l == nil {
		return
	}
	c.failIf(len(l.Distribute) > 0 && len(l.Failover) > 0, at+".distribute", nil, "cannot be combined with failover", "keep one of them")
	c.warnIf(len(l.Distribute) > 0 && len(l.FailoverPriority) > 0, at+".failoverPriority",
		verdict{"distribute decides where requests go", "keep one of them"})
	from := localities{}
	for dp, d := range each(at+".distribute", l.Distribute) {
		c.locality(dp+".from", d.From, from)
		total := uint64(0)
		// The most general go last: the map has no order.
		to := localities{}
		for _, dest := range slices.SortedFunc(maps.Keys(d.To), general) {
			tp := field(dp+".to", dest)
			c.locality(tp, dest, to)
			if w := d.To[dest]; w < 1 || w > 100 {
				c.fail(tp, w, "weight is no percentage", "use 1 to 100")
			}
			total += uint64(d.To[dest])
		}
		c.failIf(total != 100, dp+".to", total, "weights do not sum to 100", "make them sum to 100")
	}
	first := map[string]int{}
	for i, f := range l.Failover {
		fp := index(at+".failover", i)
		c.failover(fp, f.From, f.To)
		if j, again := first[f.From]; again {
			c.warn(fp, verdict{fmt.Sprintf("a region fails over to one other: that of failover[%d]", j), "keep one of them"})
		} else {
			first[f.From] = i
		}
	}
	for ip, p := range each(at+".failoverPriority", l.FailoverPriority) {
		c.failIf(len(l.Failover) > 0 && slices.Contains(topologyLabels, p), ip, p, "orders places, as failover does", "keep one of them")
		if key, value, _ := strings.Cut(p, "="); !labelKey(key) || !labelValue(value) {
			c.noWorkload(ip)
		}
	}
}

func (c *checker) failover(at, from, to string) {
	if from == to {
		c.fail(at, from, "fails over to itself", "name another region in to")
		return
	}
	for _, part := range []struct{ name, value string }{{"from", from}, {"to", to}} {
		switch {
		case part.value == "":
			c.warn(at, verdict{part.name + " is missing", "name a region"})
		case strings.ContainsAny(part.value, "*/"):
			c.fail(at+"."+part.name, part.value, "not a region", "failover is between whole regions: remove zone and wildcard")
		}
	}
}

// localities are those already named. Each is also stored under the region, and the region and zone, that it lies in.
type localities map[string]string

// locality checks a locality and that none already named overlaps with it: "*" covers all that follow, a region or zone
// covers all that lies in it, and a locality within it covers the region or zone.
func (c *checker) locality(at, s string, before localities) {
	parts := strings.SplitN(s, "/", 3)
	for i, p := range parts {
		if p == "" {
			c.fail(at, s, "part of the locality is empty", fmt.Sprintf("write region/zone/subzone without gaps; part %d is empty", i+1))
			return
		}
	}
	if i := strings.Index(s, "*"); i >= 0 && i != len(s)-1 {
		c.fail(at, s, "wildcard is not the last part", `write it like "region/*"`)
		return
	}
	if last := parts[len(parts)-1]; strings.Contains(last, "/") || strings.Contains(last, "*") && last != "*" {
		c.warn(at, verdict{"no workload runs in such a place",
			`write "region", "region/zone", "region/zone/subzone", or "*" in place of the last part`})
	}
	if other := before.covering(parts); other != "" {
		c.fail(at, s, "overlaps with "+other, "name the more special first, or make the localities disjoint")
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
