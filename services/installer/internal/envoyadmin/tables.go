package envoyadmin

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/installer/internal/table"
)

// ClustersTable has a row for each cluster, sorted by name.
func (d *Dump) ClustersTable() (*table.Table, error) {
	var dump clustersDump
	if err := d.section("ClustersConfigDump", &dump); err != nil {
		return nil, err
	}
	var all []cluster
	for _, c := range append(dump.Static, dump.Active...) {
		all = append(all, c.Cluster)
	}
	for _, c := range dump.Warming {
		c.Cluster.Type += " (warming)"
		all = append(all, c.Cluster)
	}
	t := &table.Table{Header: []string{"SERVICE FQDN", "PORT", "SUBSET", "DIRECTION", "TYPE", "DESTINATION RULE"}}
	for _, c := range all {
		n := parseClusterName(c.Name)
		t.Add(n.host, n.port, n.subset, n.direction, c.kind(), objectName(c.Metadata.istioConfig()))
	}
	sortRows(t)
	return t, nil
}

// kind is the discovery type. Envoy leaves STATIC out, the default.
func (c cluster) kind() string {
	switch {
	case c.Type == "" && len(c.ClusterType) > 0:
		return "CUSTOM"
	case c.Type == "":
		return "STATIC"
	case strings.HasPrefix(c.Type, " "):
		return "STATIC" + c.Type
	}
	return c.Type
}

type clusterName struct{ direction, port, subset, host string }

// parseClusterName parses Istio's cluster names: outbound|9080|v1|reviews.default.svc.cluster.local.
func parseClusterName(name string) clusterName {
	parts := strings.Split(name, "|")
	if len(parts) != 4 {
		return clusterName{host: name}
	}
	return clusterName{direction: parts[0], port: parts[1], subset: parts[2], host: parts[3]}
}

// objectName turns the path of istioConfig into name.namespace.
func objectName(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	i := slices.Index(parts, "namespaces")
	if i < 0 || len(parts) < i+4 {
		return ""
	}
	return parts[i+3] + "." + parts[i+1]
}

// ListenersTable has a row for each filter chain.
func (d *Dump) ListenersTable() (*table.Table, error) {
	var dump listenersDump
	if err := d.section("ListenersConfigDump", &dump); err != nil {
		return nil, err
	}
	t := &table.Table{Header: []string{"NAME", "ADDRESSES", "PORT", "MATCH", "DESTINATION"}}
	add := func(l listener, state string) {
		hosts := l.Address.host()
		for _, a := range l.Additional {
			hosts += "," + a.Address.host()
		}
		chains := l.FilterChains
		for _, c := range chains {
			t.Add(l.Name, hosts, l.Address.port(), c.match()+state, c.destination())
		}
		if l.Default != nil {
			t.Add(l.Name, hosts, l.Address.port(), "default"+state, l.Default.destination())
		}
		if l.API != nil {
			t.Add(l.Name, "", "", "calls of the program"+state, filterChain{Filters: []filter{{Config: l.API.Manager}}}.destination())
		}
	}
	for _, l := range dump.Static {
		add(l.Listener, "")
	}
	for _, l := range dump.Dynamic {
		if l.Active != nil {
			add(l.Active.Listener, "")
		}
		if l.Warming != nil {
			add(l.Warming.Listener, " (warming)")
		}
		if l.Error != nil && l.Active == nil {
			t.Add(l.Name, "", "", "rejected", l.Error.Details)
		}
	}
	slices.SortStableFunc(t.Rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	return t, nil
}

func (c filterChain) match() string {
	var parts []string
	add := func(label string, values ...string) {
		if len(values) > 0 && values[0] != "" {
			parts = append(parts, label+": "+strings.Join(values, ","))
		}
	}
	add("Trans", c.Match.Transport)
	add("App", c.Match.ALPN...)
	add("SNI", c.Match.Names...)
	if p := c.Match.Port.String(); p != "" {
		add("Port", p)
	}
	for _, p := range c.Match.Prefixes {
		add("Addr", p.Prefix+"/"+p.Length.String())
	}
	if len(parts) == 0 {
		return "ALL"
	}
	return strings.Join(parts, "; ")
}

// kind says what the listener's filter chains serve: HTTP, TCP, HTTP+TCP, or nothing of these (empty).
func (l listener) kind() string {
	chains := l.FilterChains
	if l.Default != nil {
		chains = append(slices.Clone(chains), *l.Default)
	}
	http, tcp := l.API != nil, false
	for _, c := range chains {
		for _, f := range c.Filters {
			var cfg httpOrTCP
			if json.Unmarshal(f.Config, &cfg) == nil {
				http = http || strings.HasSuffix(cfg.Type, ".HttpConnectionManager")
				tcp = tcp || strings.HasSuffix(cfg.Type, ".TcpProxy")
			}
		}
	}
	switch {
	case http && tcp:
		return "HTTP+TCP"
	case http:
		return "HTTP"
	case tcp:
		return "TCP"
	}
	return ""
}

// destination is where the last HTTP or TCP filter of the chain sends requests or connections.
func (c filterChain) destination() string {
	for _, f := range slices.Backward(c.Filters) {
		var cfg httpOrTCP
		if json.Unmarshal(f.Config, &cfg) != nil {
			continue
		}
		switch {
		case cfg.RDS != nil:
			return "Route: " + cfg.RDS.Name
		case cfg.Inline != nil:
			return "Inline Route: " + strings.Join(inlineRoutes(*cfg.Inline), ", ")
		case cfg.Cluster != "":
			return "Cluster: " + cfg.Cluster
		case cfg.Weight != nil:
			return "Clusters: " + strings.Join(shares(cfg.Weight.Clusters), ", ")
		}
	}
	names := lists.Map(c.Filters, func(f filter) string { return f.Name })
	return strings.Join(names, ", ")
}

func inlineRoutes(r routeConfig) []string {
	var list []string
	for _, v := range r.VirtualHosts {
		for _, rt := range v.Routes {
			list = append(list, rt.Match.String())
		}
	}
	return list
}

// String is the path of a match as istioctl writes it, with a mark if headers or query parameters matter too.
func (m stringMatch) String() string {
	s := ""
	switch {
	case m.Path != "":
		s = m.Path
	case m.PathSep != "":
		s = "PathPrefix:" + m.PathSep
	case m.Regex != nil:
		s = "regex " + m.Regex.Regex
	case m.Connect != nil:
		s = "CONNECT"
	default:
		s = m.Prefix + "*"
	}
	if len(m.Headers)+len(m.Query) > 0 {
		s += " (+headers)"
	}
	return s
}

// EndpointsTable has a row for each endpoint, with the health that Envoy knows.
func (c *ClusterStatuses) EndpointsTable() *table.Table {
	t := &table.Table{Header: []string{"ENDPOINT", "STATUS", "OUTLIER CHECK", "CLUSTER"}}
	for _, cl := range c.Clusters {
		for _, h := range cl.Hosts {
			outlier := "OK"
			if h.Health.Outlier {
				outlier = "FAILED"
			}
			status := h.Health.EDS
			if h.Health.Active {
				status += " (failed health check)"
			}
			t.Add(h.Address.String(), status, outlier, cl.Name)
		}
	}
	sortEndpoints(t)
	return t
}

func sortEndpoints(t *table.Table) {
	slices.SortStableFunc(t.Rows, func(a, b []string) int { return strings.Compare(a[3]+" "+a[0], b[3]+" "+b[0]) })
}

// EndpointsTable has a row for each endpoint of the assignments (EDS); results of health checks are not in a dump.
func (d *Dump) EndpointsTable() (*table.Table, error) {
	var dump endpointsDump
	if err := d.section(string(Endpoints), &dump); err != nil {
		return nil, err
	}
	t := &table.Table{Header: []string{"ENDPOINT", "STATUS", "OUTLIER CHECK", "CLUSTER"}}
	for _, a := range append(dump.Static, dump.Dynamic...) {
		for _, l := range a.Config.Localities {
			for _, e := range l.Endpoints {
				t.Add(e.Endpoint.Address.String(), e.status(), "", a.Config.Cluster)
			}
		}
	}
	sortEndpoints(t)
	return t, nil
}

// ExtensionsTable has a row for each extension config (ECDS).
func (d *Dump) ExtensionsTable() (*table.Table, error) {
	var dump struct {
		Filters []struct {
			Version string `json:"version_info"`
			Filter  struct {
				Name   string `json:"name"`
				Config struct {
					Type string `json:"@type"`
				} `json:"typed_config"`
			} `json:"ecds_filter"`
		} `json:"ecds_filters"`
	}
	if err := d.section(string(Extensions), &dump); err != nil {
		return nil, err
	}
	t := &table.Table{Header: []string{"NAME", "TYPE", "VERSION"}}
	for _, f := range dump.Filters {
		t.Add(f.Filter.Name, f.Filter.Config.Type[strings.LastIndexByte(f.Filter.Config.Type, '/')+1:], f.Version)
	}
	sortRows(t)
	return t, nil
}

// SecretsTable has a row for each certificate that the proxy holds; now decides whether it is valid.
func (d *Dump) SecretsTable(now time.Time) (*table.Table, error) {
	var dump secretsDump
	if err := d.section("SecretsConfigDump", &dump); err != nil {
		return nil, err
	}
	t := &table.Table{Header: []string{"RESOURCE NAME", "TYPE", "STATUS", "VALID CERT", "SERIAL NUMBER", "NOT AFTER", "NOT BEFORE"}}
	for state, list := range map[string][]dynamicSecret{"ACTIVE": append(dump.Active, dump.Static...), "WARMING": dump.Warming} {
		for _, s := range list {
			kind, pemText := "Secret", []byte(nil)
			switch {
			case s.Secret.TLS != nil:
				kind, pemText = "Cert Chain", s.Secret.TLS.Chain.text()
			case s.Secret.Validation != nil:
				kind, pemText = "CA", s.Secret.Validation.CA.text()
			}
			cert, err := firstCertificate(pemText)
			if err != nil {
				t.Add(s.Name, kind, state, "false", "", "", "")
				continue
			}
			valid := now.After(cert.NotBefore) && now.Before(cert.NotAfter)
			t.Add(s.Name, kind, state, fmt.Sprint(valid), fmt.Sprintf("%x", cert.SerialNumber),
				cert.NotAfter.UTC().Format(time.RFC3339), cert.NotBefore.UTC().Format(time.RFC3339))
		}
	}
	sortRows(t)
	return t, nil
}

func firstCertificate(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("no PEM block")
	}
	return x509.ParseCertificate(block.Bytes)
}

func sortRows(t *table.Table) {
	slices.SortStableFunc(t.Rows, slices.Compare)
}
