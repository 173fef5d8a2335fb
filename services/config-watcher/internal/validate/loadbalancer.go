package validate

import (
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

func (c *checker) loadBalancer(at string, lb *networking.LoadBalancerSettings) {
	if lb == nil {
		return
	}
	c.consistentHash(at+".consistentHash", lb.GetConsistentHash())
	c.localityLB(at+".localityLbSetting", lb.LocalityLbSetting)
	c.zoneAware(at+".zoneAwareLbSetting", lb.ZoneAwareLbSetting)
	if lb.LocalityLbSetting != nil && lb.ZoneAwareLbSetting != nil {
		c.fail(at+".zoneAwareLbSetting", nil, "cannot be combined with localityLbSetting", "keep one of them")
	}
	//nolint:staticcheck // deprecated in Istio, still served
	if lb.WarmupDurationSecs != nil {
		c.duration(at+".warmupDurationSecs", lb.WarmupDurationSecs)
		if lb.Warmup != nil {
			c.fail(at+".warmup", nil, "cannot be combined with warmupDurationSecs", "keep warmup")
		}
	}
	//nolint:staticcheck // deprecated in Istio, still served
	warmup := lb.WarmupDurationSecs != nil || lb.Warmup != nil
	if w := lb.Warmup; w != nil {
		if w.Duration == nil {
			c.fail(at+".warmup.duration", nil, "missing", `set how long an endpoint warms up, like "30s"`)
		}
		c.duration(at+".warmup.duration", w.Duration)
		if w.MinimumPercent != nil {
			c.percent(at+".warmup.minimumPercent", w.MinimumPercent.Value)
		}
		if w.Aggression != nil && !(w.Aggression.Value >= 1) {
			c.fail(at+".warmup.aggression", w.Aggression.Value, "less than 1", "use 1 (linear) or more")
		}
	}
	if warmup {
		switch s := lb.GetSimple(); {
		case lb.GetConsistentHash() != nil, s == networking.LoadBalancerSettings_RANDOM, s == networking.LoadBalancerSettings_PASSTHROUGH:
			c.fail(at, nil, "warm-up works only with ROUND_ROBIN and LEAST_REQUEST", "change simple, or remove the warm-up")
		}
	}
}

func (c *checker) consistentHash(at string, h *networking.LoadBalancerSettings_ConsistentHashLB) {
	if h == nil {
		return
	}
	switch k := h.HashKey.(type) {
	case nil:
		c.fail(at, nil, "nothing to hash", "set httpHeaderName, httpCookie, useSourceIp or httpQueryParameterName")
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName:
		c.headerName(at+".httpHeaderName", k.HttpHeaderName)
	case *networking.LoadBalancerSettings_ConsistentHashLB_UseSourceIp:
		if !k.UseSourceIp {
			c.fail(at+".useSourceIp", false, "nothing to hash", "set it to true, or another key")
		}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpQueryParameterName:
		if k.HttpQueryParameterName == "" {
			c.fail(at+".httpQueryParameterName", "", "parameter name is empty", "name the parameter")
		}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpCookie:
		c.cookie(at+".httpCookie", k.HttpCookie)
	}
	if m := h.GetMaglev(); m != nil && m.TableSize != 0 {
		if m.TableSize > 5000011 || !prime(m.TableSize) {
			c.fail(at+".maglev.tableSize", m.TableSize, "not a prime number up to 5000011", "use a prime such as 65537")
		}
	}
	//nolint:staticcheck // deprecated in Istio, still served
	for path, size := range map[string]uint64{at + ".ringHash.minimumRingSize": h.GetRingHash().GetMinimumRingSize(), at + ".minimumRingSize": h.MinimumRingSize} {
		if size > 8<<20 {
			c.fail(path, size, "larger than Envoy's largest ring, 8388608", "use a smaller ring")
		}
	}
}

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
	for i, a := range k.GetAttributes() {
		ap := index(at+".attributes", i)
		c.token(ap+".name", a.GetName(), "cookie attribute")
		c.cookiePart(ap+".value", a.GetValue())
	}
}

// cookiePart checks the value of an attribute, which a semicolon would end.
func (c *checker) cookiePart(at, s string) {
	if c.printable(at, s) && strings.Contains(s, ";") {
		c.fail(at, s, "a semicolon ends the value", "write what follows as an attribute of its own")
	}
}

// prime tests by trial division: Envoy refuses a Maglev table of any other size.
func prime(n uint64) bool {
	if n < 2 {
		return false
	}
	for d := uint64(2); d*d <= n; d++ {
		if n%d == 0 {
			return false
		}
	}
	return true
}

// placeLabels say where a workload runs.
var placeLabels = []string{"topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/subzone"}

func (c *checker) localityLB(at string, l *networking.LocalityLoadBalancerSetting) {
	if l == nil {
		return
	}
	if len(l.Distribute) > 0 && (len(l.Failover) > 0 || len(l.FailoverPriority) > 0) {
		c.fail(at+".distribute", nil, "cannot be combined with failover or failoverPriority", "keep one of them")
	}
	var from []string
	for i, d := range l.Distribute {
		dp := index(at+".distribute", i)
		c.locality(dp+".from", d.From)
		for _, other := range from {
			if overlapping(other, d.From) {
				c.fail(dp+".from", d.From, "overlaps with "+other, "make the localities disjoint")
			}
		}
		from = append(from, d.From)
		total := uint64(0)
		var to []string
		for _, dest := range sortedKeys(d.To) {
			tp := field(dp+".to", dest)
			c.locality(tp, dest)
			for _, other := range to {
				if overlapping(other, dest) {
					c.fail(tp, dest, "overlaps with "+other, "make the localities disjoint")
				}
			}
			to = append(to, dest)
			if w := d.To[dest]; w < 1 || w > 100 {
				c.fail(tp, w, "weight is no percentage", "use 1 to 100")
			}
			total += uint64(d.To[dest])
		}
		if total != 100 {
			c.fail(dp+".to", total, "weights do not sum to 100", "make them sum to 100")
		}
	}
	first := map[string]int{}
	for i, f := range l.Failover {
		fp := index(at+".failover", i)
		c.failover(fp, f.From, f.To)
		if j, again := first[f.From]; again {
			c.fail(fp+".from", f.From, fmt.Sprintf("same region as failover[%d]", j), "a region fails over to one other: keep one of them")
		} else {
			first[f.From] = i
		}
	}
	for i, p := range l.FailoverPriority {
		key, value, _ := strings.Cut(p, "=")
		if key == "" {
			c.fail(index(at+".failoverPriority", i), p, "label name is empty", `write "label" or "label=value"`)
			continue
		}
		if len(l.Failover) > 0 && slices.Contains(placeLabels, key) {
			c.fail(index(at+".failoverPriority", i), p, "orders places, as failover does", "keep one of them")
		}
		c.label(index(at+".failoverPriority", i), key, value)
	}
}

func (c *checker) failover(at, from, to string) {
	for name, v := range map[string]string{"from": from, "to": to} {
		if v == "" {
			c.fail(at+"."+name, nil, "missing", "name a region")
		} else if strings.ContainsAny(v, "*/") {
			c.fail(at+"."+name, v, "not a region", "failover is between whole regions: remove zone and wildcard")
		}
	}
	if from == to && from != "" {
		c.fail(at, from, "fails over to itself", "name another region in to")
	}
}

// locality checks region[/zone[/subzone]] where the last part may be "*".
func (c *checker) locality(at, s string) {
	parts := strings.Split(s, "/")
	if len(parts) > 3 {
		c.fail(at, s, "more than region/zone/subzone", "remove the rest")
		return
	}
	for i, p := range parts {
		if p == "" {
			c.fail(at, s, "part of the locality is empty", fmt.Sprintf("write region/zone/subzone without gaps; part %d is empty", i+1))
			return
		}
		if strings.Contains(p, "*") && (p != "*" || i != len(parts)-1) {
			c.fail(at, s, "wildcard is not the last part", `write it like "region/*"`)
			return
		}
	}
}

// overlapping reports whether two localities have a place in common.
func overlapping(a, b string) bool {
	as, bs := strings.Split(a, "/"), strings.Split(b, "/")
	for i := range min(len(as), len(bs)) {
		if as[i] == "*" || bs[i] == "*" {
			return true
		}
		if as[i] != bs[i] {
			return false
		}
	}
	return true
}
