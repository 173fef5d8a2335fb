package envoyadmin

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"fairlead.dev/pkg/lists"

	"fairlead.dev/services/installer/internal/table"
)

// weightedCluster is one of several destinations with its weight.
type weightedCluster struct {
	Name   string      `json:"name"`
	Weight json.Number `json:"weight"`
}

// routeAction holds fields of envoy.config.route.v3.RouteAction.
type routeAction struct {
	Cluster       string `json:"cluster"`
	ClusterHeader string `json:"cluster_header"`
	Weighted      *struct {
		Clusters []weightedCluster `json:"clusters"`
	} `json:"weighted_clusters"`
	Mirrors []struct {
		Cluster  string `json:"cluster"`
		Fraction *struct {
			Default struct {
				Numerator   float64 `json:"numerator"`
				Denominator string  `json:"denominator"`
			} `json:"default_value"`
		} `json:"runtime_fraction"`
	} `json:"request_mirror_policies"`
}

// redirect holds fields of envoy.config.route.v3.RedirectAction.
type redirect struct {
	Host   string      `json:"host_redirect"`
	Path   string      `json:"path_redirect"`
	Prefix string      `json:"prefix_rewrite"`
	Scheme string      `json:"scheme_redirect"`
	HTTPS  bool        `json:"https_redirect"`
	Port   json.Number `json:"port_redirect"`
}

// destination is the cell DESTINATION: clusters with their shares and mirrors, a redirect, or a status.
func (r route) destination() string {
	switch {
	case r.Route != nil:
		parts := []string{r.Route.target()}
		for _, m := range r.Route.Mirrors {
			text := "mirror: " + shownCluster(m.Cluster)
			if m.Fraction != nil {
				whole := map[string]float64{"TEN_THOUSAND": 10_000, "MILLION": 1_000_000}[m.Fraction.Default.Denominator]
				whole = cmp.Or(whole, 100)
				text += " (" + percent(m.Fraction.Default.Numerator, whole) + ")"
			}
			parts = append(parts, text)
		}
		return strings.Join(parts, "; ")
	case r.Redirect != nil:
		return "redirect: " + r.Redirect.String()
	case r.Direct != nil:
		return "status " + r.Direct.Status.String()
	}
	return ""
}

func (a *routeAction) target() string {
	switch {
	case a.Weighted != nil:
		return strings.Join(shares(a.Weighted.Clusters), ", ")
	case a.ClusterHeader != "":
		return "cluster of header " + a.ClusterHeader
	}
	return shownCluster(a.Cluster)
}

// shares lists destinations with their part of the traffic. A subset after another of the same host is shown without
// the host.
func shares(list []weightedCluster) []string {
	total := 0.0
	for _, c := range list {
		total += weight(c.Weight)
	}
	var out []string
	last := ""
	for _, c := range list {
		text := shownCluster(c.Name)
		if host, subset, ok := strings.Cut(text, " "); ok && host == last {
			text = subset
		} else {
			last = host
		}
		if total > 0 {
			text += " (" + percent(weight(c.Weight), total) + ")"
		}
		out = append(out, text)
	}
	return out
}

func weight(n json.Number) float64 {
	f, _ := n.Float64() // nothing is 0
	return f
}

func percent(part, whole float64) string {
	return strconv.FormatFloat(part*100/whole, 'g', 4, 64) + "%"
}

// shownCluster writes a cluster's name as people write destinations: host:port, and the subset.
func shownCluster(name string) string {
	n := parseClusterName(name)
	if n.port == "" || n.host == "" {
		return name
	}
	text := n.host + ":" + n.port
	if n.subset != "" {
		text += " " + n.subset
	}
	return text
}

// String writes the parts of the URL that the redirect changes.
func (r redirect) String() string {
	text := ""
	if r.Scheme != "" || r.HTTPS {
		if text = r.Scheme; r.HTTPS {
			text = "https"
		}
		text += "://"
	}
	text += r.Host
	if p := r.Port.String(); p != "" && p != "0" {
		text += ":" + p
	}
	return text + r.Path + r.Prefix
}

// RoutesTable has a row for each route.
func (d *Dump) RoutesTable() (*table.Table, error) {
	all, err := d.routeConfigs()
	if err != nil {
		return nil, err
	}
	t := &table.Table{Header: []string{"NAME", "VHOST NAME", "DOMAINS", "MATCH", "DESTINATION", "VIRTUAL SERVICE"}}
	for _, rc := range all {
		for _, v := range rc.VirtualHosts {
			for _, r := range v.Routes {
				t.Add(rc.Name, v.Name, domains(v.Domains), r.Match.String(), r.destination(), r.object())
			}
			if len(v.Routes) == 0 {
				t.Add(rc.Name, v.Name, domains(v.Domains), "none", "", "")
			}
		}
	}
	return t, nil
}

// routeConfigs lists the route configurations by name.
func (d *Dump) routeConfigs() ([]routeConfig, error) {
	var dump routesDump
	if err := d.section("RoutesConfigDump", &dump); err != nil {
		return nil, err
	}
	all := lists.Map(append(dump.Static, dump.Dynamic...), func(r dumpedRoutes) routeConfig { return r.Config })
	slices.SortStableFunc(all, func(a, b routeConfig) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// domains shows the shortest domains of a virtual host, which are those that people write.
func domains(list []string) string {
	const shown = 2
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b string) int { return len(a) - len(b) })
	if len(list) > shown+1 {
		return fmt.Sprintf("%s + %d more", strings.Join(list[:shown], ", "), len(list)-shown)
	}
	return strings.Join(list, ", ")
}
