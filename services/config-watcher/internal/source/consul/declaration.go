package consul

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/fetch"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/yamltext"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/consul/registry"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

const (
	// maxDeclaration bounds a declaration and each file that it names.
	maxDeclaration = 256 << 10
	maxRules       = 500
	defaultDomain  = "consul"
)

// Entries of a Secret. secretDocument is the declaration; the others are what it may name as files in a directory.
const (
	secretDocument    = "registry.yaml"
	secretToken       = "token"
	secretCA          = "ca.crt"
	secretCertificate = "tls.crt"
	secretKey         = "tls.key"
)

// document is a declaration as it is written (docs/guide/consul.md). An unknown field is a mistake.
type document struct {
	Address     string `json:"address"`
	Datacenter  string `json:"datacenter"`
	Domain      string `json:"domain,omitempty"`
	Qualified   bool   `json:"qualified,omitempty"`
	Addresses   string `json:"addresses,omitempty"`
	Network     string `json:"network,omitempty"`
	ServerName  string `json:"serverName,omitempty"`
	Created     string `json:"created,omitempty"`
	Token       string `json:"token,omitempty"`
	TokenFile   string `json:"tokenFile,omitempty"`
	CA          string `json:"ca,omitempty"`
	CAFile      string `json:"caFile,omitempty"`
	Certificate string `json:"certificate,omitempty"`
	// CertificateFile and KeyFile are in PEM, like Certificate and Key.
	CertificateFile string `json:"certificateFile,omitempty"`
	Key             string `json:"key,omitempty"`
	KeyFile         string `json:"keyFile,omitempty"`

	Rules []ruleDocument `json:"rules"`
}

type ruleDocument struct {
	Services  []string          `json:"services"`
	Namespace string            `json:"namespace"`
	Port      uint32            `json:"port,omitempty"`
	Ports     map[string]uint32 `json:"ports,omitempty"`
	Protocol  string            `json:"protocol,omitempty"`
	Account   string            `json:"account,omitempty"`
	ExportTo  []string          `json:"exportTo,omitempty"`
	Joins     string            `json:"joins,omitempty"`
	Share     *uint32           `json:"share,omitempty"`
}

// declaration is one that was accepted.
type declaration struct {
	registry.Registry
	// place is "Secret istio-system/consul-east", or the path of a file.
	place string
	// bySecret is true for one of a Secret.
	bySecret bool
	address  string
	tls      *tls.Config
	token    string
	// connection is the hash of what the connection is made from, hash that of everything.
	connection, hash [sha256.Size]byte
}

// written is a declaration before it is judged.
type written struct {
	name, place string
	created     time.Time
	text        []byte
	// entries are those of a Secret beside the declaration; dir is the directory of a file, "" for a Secret.
	entries map[string][]byte
	dir     string
	// unread is why the text could not be read.
	unread error
	// sent is true for one that a caller has sent, which neither is a Secret nor names files.
	sent bool
}

// fromSecret takes the parts of a Secret.
func fromSecret(s *corev1.Secret) written {
	return written{name: s.Name, place: "Secret " + s.Namespace + "/" + s.Name, created: s.CreationTimestamp.Time,
		text:    s.Data[secretDocument],
		entries: s.Data}
}

// fromFile reads a file of --registry-dir.
func fromFile(file string) written {
	text, err := fileio.Read(file, maxDeclaration)
	name := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(file), ".yaml"), ".yml")
	return written{name: name, place: file, text: text, dir: filepath.Dir(file), unread: err}
}

// bounds are what a declaration may say in this mesh.
type bounds struct {
	// addresses are those that Consul and instances may have.
	addresses fetch.Addresses
	// domain is the mesh's DNS suffix, system the namespace of the control plane.
	domain, system string
}

// judge collects what is wrong with a declaration.
type judge struct {
	of    written
	in    bounds
	found object.Problems
}

func (j *judge) fail(field, reason, remedy string) {
	p := object.Problem{Location: j.of.place, Field: field, Reason: reason, Remedy: remedy}
	if j.of.dir == "" && !j.of.sent {
		p.Location, p.Object = "", j.of.place
	}
	j.found = append(j.found, p)
}

func (j *judge) failIf(is bool, field, reason, remedy string) {
	if is {
		j.fail(field, reason, remedy)
	}
}

// parse judges a declaration. Nothing of a credential is in the problems.
func parse(w written, in bounds) (*declaration, object.Problems) {
	j := &judge{of: w, in: in}
	j.failIf(!check.DNSLabel(w.name) || len(w.name) > 40, "name", object.Quote(w.name)+" is no name of a registry",
		"name the Secret or file by at most 40 lower-case letters, digits and '-'")
	var doc document
	switch {
	case w.unread != nil:
		j.fail("", w.unread.Error(), "make it readable")
	case len(w.text) == 0 && w.dir == "" && !w.sent:
		j.fail("data["+secretDocument+"]", "is missing", "write the declaration there")
	case len(w.text) > maxDeclaration:
		j.fail("", fmt.Sprintf("declaration of %d bytes, at most %d are read", len(w.text), maxDeclaration), "leave out what is not needed")
	default:
		err := yamltext.Check(w.text)
		if err == nil {
			err = yaml.UnmarshalStrict(w.text, &doc)
		}
		if err != nil {
			j.fail("", "is no declaration of a registry: "+object.Cut(err.Error(), 200), "correct it; docs/guide/consul.md has all fields")
		}
	}
	if len(j.found) > 0 {
		return nil, j.found
	}
	d := &declaration{place: w.place, bySecret: w.dir == "", Registry: registry.Registry{Name: w.name,
		Datacenter: strings.ToLower(doc.Datacenter),
		Domain:     strings.ToLower(strings.Trim(cmp.Or(doc.Domain, defaultDomain), ".")), Qualified: doc.Qualified, WAN: doc.Addresses == "wan",
		Network: doc.Network, Created: w.created, Addresses: in.addresses}}
	j.names(&doc, d)
	j.connection(&doc, d)
	for i, r := range doc.Rules {
		d.Rules = append(d.Rules, j.rule(fmt.Sprintf("rules[%d]", i), r))
	}
	j.failIf(len(doc.Rules) == 0, "rules", "is missing, so no service would be read", `write for example [{services: ["*"], namespace: consul}]`)
	j.failIf(len(doc.Rules) > maxRules, "rules", fmt.Sprintf("has %d rules, %d are possible", len(doc.Rules), maxRules), "join some of them")
	j.joins(d.Rules)
	if len(j.found) > 0 {
		return nil, j.found
	}
	d.hash = sha256.Sum256(fmt.Appendf(nil, "%x %+v %v %v %q %v", d.connection, d.Rules, d.Qualified, d.WAN, d.Network+" "+d.Domain,
		d.Created))
	return d, nil
}

func (j *judge) names(doc *document, d *declaration) {
	j.failIf(!check.DNSLabel(d.Datacenter), "datacenter", object.Quote(doc.Datacenter)+" is no name of a datacenter",
		"write the name that `consul members` shows")
	j.failIf(!check.DNSSubdomain(d.Domain) || len(d.Domain) > 150, "domain", object.Quote(doc.Domain)+" is no domain",
		"write that of Consul's DNS, or remove it for "+defaultDomain)
	j.failIf(d.Domain == j.in.domain || strings.HasSuffix(d.Domain, "."+j.in.domain) || strings.HasSuffix(j.in.domain, "."+d.Domain), "domain",
		"names of "+object.Quote(d.Domain)+" are the mesh's own", "write the domain of Consul's DNS")
	j.failIf(!slices.Contains([]string{"", "lan", "wan"}, doc.Addresses), "addresses", object.Quote(doc.Addresses)+" is not possible",
		"write lan, or wan for the tagged addresses of that name")
	j.failIf(doc.Network != "" && !check.LabelValue(doc.Network), "network", object.Quote(doc.Network)+" is no name of a network",
		"write a name of meshNetworks")
	if doc.Created != "" {
		t, err := time.Parse(time.RFC3339, doc.Created)
		j.failIf(err != nil, "created", object.Quote(doc.Created)+" is no point in time", `write it like "2026-01-31T12:00:00Z", or remove it`)
		j.failIf(j.of.dir == "" && !j.of.sent, "created", "a Secret's own age counts", "remove it")
		d.Created = t
	}
}

// credential is a value that stands in the document, in an entry of the Secret, or in a file beside the document.
func (j *judge) credential(field, value, file, entry string) string {
	content := []byte(value)
	switch {
	case value != "" && file != "":
		j.fail(field+"File", "is given beside "+field, "give one of the two")
	case file != "" && j.of.sent:
		j.fail(field+"File", "names a file, which a declaration that is sent cannot", "write its content into "+field)
	case file != "" && j.of.dir == "":
		j.fail(field+"File", "names a file, and config-watcher reads none for a Secret", "write it into data["+entry+"] of the Secret")
	case file != "":
		if !filepath.IsAbs(file) {
			file = filepath.Join(j.of.dir, file)
		}
		var err error
		if content, err = fileio.Read(file, maxDeclaration); err != nil {
			j.fail(field+"File", err.Error(), "make it readable, or name another file")
		}
	case j.of.dir == "" && len(j.of.entries[entry]) > 0:
		j.failIf(value != "", field, "is given beside data["+entry+"]", "give one of the two")
		content = j.of.entries[entry]
	}
	return strings.TrimSpace(string(content))
}

// connection checks what the connection is made from.
func (j *judge) connection(doc *document, d *declaration) {
	d.token = j.credential("token", doc.Token, doc.TokenFile, secretToken)
	ca := j.credential("ca", doc.CA, doc.CAFile, secretCA)
	certificate := j.credential("certificate", doc.Certificate, doc.CertificateFile, secretCertificate)
	key := j.credential("key", doc.Key, doc.KeyFile, secretKey)
	j.failIf(strings.ContainsFunc(d.token, func(r rune) bool { return r <= ' ' || r >= 0x7f }), "token", "has characters that no token has",
		"write the token alone")
	u, err := url.Parse(doc.Address)
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" {
		j.fail("address", "is no address of Consul's HTTP API",
			"write https:// or http://, the host and the port, such as https://consul.example.com:8501")
		return
	}
	j.failIf(u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Path != "" && u.Path != "/", "address",
		"has more than a scheme, a host and a port", "remove the rest")
	if port := u.Port(); port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		j.failIf(err != nil || n == 0, "address", object.Quote(port)+" is no port", "write 1 to 65535")
	}
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	local := host == "localhost" || strings.HasSuffix(host, ".localhost")
	ip, err := netip.ParseAddr(host)
	if local {
		ip, err = netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil
	}
	if err == nil { // what a name stands for is checked at each connection
		local = ip.Unmap().IsLoopback()
		if err := j.in.addresses.Check(ip); err != nil {
			j.fail("address", err.Error(), "name the address that Consul has for others, or allow it with --registry-allow-addresses")
		}
	}
	if u.Scheme == "http" {
		j.failIf(d.token != "" && !local, "address", "is not https: the token would cross the network in the clear",
			"write https://, Consul's port for it is 8501")
		j.failIf(ca+certificate+key != "" || doc.ServerName != "", "address",
			"is not https, so ca, certificate, key and serverName have no effect",
			"write https://, or remove them")
	} else {
		d.tls = j.tlsConfig(ca, certificate, key, cmp.Or(doc.ServerName, u.Hostname()))
	}
	d.address = u.Scheme + "://" + u.Host
	d.connection = sha256.Sum256(fmt.Appendf(nil, "%q", []string{d.address, d.Datacenter, d.token, ca, certificate, key, doc.ServerName}))
}

func (j *judge) tlsConfig(ca, certificate, key, name string) *tls.Config {
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name}
	if ca != "" {
		out.RootCAs = x509.NewCertPool()
		j.failIf(!out.RootCAs.AppendCertsFromPEM([]byte(ca)), "ca", "has no certificate in PEM", "write Consul's CA in PEM")
	}
	if certificate+key == "" {
		return out
	}
	pair, err := tls.X509KeyPair([]byte(certificate), []byte(key))
	j.failIf(err != nil, "certificate", "is not a certificate with the key in field key", "write both in PEM")
	out.Certificates = []tls.Certificate{pair}
	return out
}

// rule checks a rule.
func (j *judge) rule(at string, doc ruleDocument) registry.Rule {
	r := registry.Rule{Services: doc.Services, Namespace: doc.Namespace, Port: doc.Port, Ports: doc.Ports, Account: doc.Account,
		ExportTo: doc.ExportTo}
	j.failIf(len(doc.Services) == 0, at+".services", "is missing", `list names of services, or write ["*"]`)
	for i, pattern := range doc.Services {
		_, err := path.Match(pattern, "")
		j.failIf(err != nil || pattern == "", fmt.Sprintf("%s.services[%d]", at, i), object.Quote(pattern)+" is no name or pattern",
			"use a name, '*' for any characters and '?' for one")
	}
	j.failIf(!check.DNSLabel(doc.Namespace), at+".namespace", object.Quote(doc.Namespace)+" is no namespace",
		"name the namespace of the services")
	j.failIf(doc.Port > 65535, at+".port", fmt.Sprintf("%d is not a port", doc.Port), "use 1 to 65535")
	for _, name := range slices.Sorted(maps.Keys(doc.Ports)) {
		n := doc.Ports[name]
		j.failIf(n < 1 || n > 65535 || !check.DNSLabel(name), at+".ports", fmt.Sprintf("%s: %d is no port", object.Quote(name), n),
			"write the name of a port and 1 to 65535")
	}
	if doc.Protocol != "" {
		r.Protocol = registry.Protocol(doc.Protocol)
		j.failIf(r.Protocol == "", at+".protocol", object.Quote(doc.Protocol)+" is not possible",
			"use http, http2, grpc, grpc-web, https, tls, tcp, mongo, mysql or redis")
	}
	j.failIf(doc.Account != "" && !check.DNSSubdomain(doc.Account), at+".account", object.Quote(doc.Account)+" is no service account",
		"write the name of a service account of the namespace")
	j.failIf(doc.Account != "" && doc.Namespace == j.in.system, at+".account",
		"identities of "+j.in.system+" are the control plane's", "use another namespace")
	for i, to := range doc.ExportTo {
		j.failIf(to != "*" && to != "." && to != "~" && !check.DNSLabel(to), fmt.Sprintf("%s.exportTo[%d]", at, i),
			object.Quote(to)+" is no namespace", `write a namespace, ".", "*" or "~"`)
	}
	if doc.Joins != "" {
		r.Joins = strings.ToLower(strings.TrimSuffix(doc.Joins, "."))
		name, isService := strings.CutSuffix(r.Joins, "."+doc.Namespace+".svc."+j.in.domain)
		j.failIf(!isService || !check.DNSLabel(name), at+".joins", object.Quote(doc.Joins)+" is no host of a Service of namespace "+doc.Namespace,
			"write NAME."+doc.Namespace+".svc."+j.in.domain+", or another namespace")
		j.failIf(doc.Share == nil, at+".share", "is missing", "write how many percent of the traffic the instances in Consul get, 0 to 100")
		j.failIf(len(doc.Services) != 1 || strings.ContainsAny(strings.Join(doc.Services, ""), `*?[\`), at+".services",
			"several services cannot join one host", "name one service in a rule with joins")
	}
	j.failIf(doc.Share != nil && doc.Joins == "", at+".share", "has no effect without joins", "name the host in joins, or remove share")
	if doc.Share != nil {
		r.Share = *doc.Share
		j.failIf(r.Share > 100, at+".share", fmt.Sprintf("%d is more than 100 percent", r.Share), "use 0 to 100")
	}
	return r
}

// joins refuses two rules that join one host.
func (j *judge) joins(rules []registry.Rule) {
	first := map[string]int{}
	for i, r := range rules {
		if r.Joins == "" {
			continue
		}
		other, taken := first[r.Joins]
		j.failIf(taken, fmt.Sprintf("rules[%d].joins", i), fmt.Sprintf("rules[%d] joins the same host", other), "keep one of them")
		if !taken {
			first[r.Joins] = i
		}
	}
}
