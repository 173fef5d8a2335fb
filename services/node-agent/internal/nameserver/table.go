package nameserver

import (
	"net/netip"
	"strings"

	"github.com/miekg/dns"

	ndsv1 "fairlead.dev/proto/istio/networking/nds/v1"
)

// ttl of answers from the table in seconds, as in Istio's agent.
const ttl = 30

// kubernetes is the NameInfo.registry of Services, whose names have short forms.
const kubernetes = "Kubernetes"

// table is a name table (NDS), indexed for look-ups: names are lower case with a final dot. It is immutable.
type table struct {
	// hosts by name; several names may have one host.
	hosts map[string]*host
	// search is the domain that resolvers append first, such as ".apps.svc.cluster.local.".
	search string
}

// host has the addresses of a name.
type host struct {
	name   string
	v4, v6 []netip.Addr
}

// newTable makes the table of a workload in the namespace; search is the first search domain of its resolv.conf.
func newTable(m *ndsv1.NameTable, namespace, search string) *table {
	t := &table{hosts: make(map[string]*host, len(m.GetTable()))}
	if search = strings.Trim(strings.ToLower(search), "."); search != "" {
		t.search = "." + search + "."
	}
	for name, info := range m.GetTable() {
		h := &host{name: dns.CanonicalName(name)}
		for _, text := range info.GetIps() {
			ip, err := netip.ParseAddr(text)
			switch {
			case err != nil:
			case ip.Unmap().Is4():
				h.v4 = append(h.v4, ip.Unmap())
			default:
				h.v6 = append(h.v6, ip)
			}
		}
		t.hosts[h.name] = h
	}
	// A name in the table takes precedence over a short form of another.
	for name, info := range m.GetTable() {
		if info.GetRegistry() != kubernetes || info.GetShortname() == "" || info.GetNamespace() == "" {
			continue
		}
		short := info.GetShortname() + "." + info.GetNamespace() + "."
		forms := []string{short, short + "svc."}
		if info.GetNamespace() == namespace {
			forms = append(forms, info.GetShortname()+".")
		}
		for _, form := range forms {
			if form = strings.ToLower(form); t.hosts[form] == nil {
				t.hosts[form] = t.hosts[dns.CanonicalName(name)]
			}
		}
	}
	return t
}

// find looks up a canonical name. If that is a name with the resolver's search domain appended, alias is the name
// without it, else "".
func (t *table) find(name string) (h *host, alias string) {
	if h := t.hosts[name]; h != nil {
		return h, ""
	}
	short, searched := strings.CutSuffix(name, t.search)
	searched = searched && t.search != "" && short != ""
	short += "."
	if h := t.hosts[short]; searched && h != nil {
		return h, short
	}
	if h := t.wildcard(name); h != nil {
		return h, ""
	}
	if searched {
		if h := t.wildcard(short); h != nil {
			return h, short
		}
	}
	return nil, ""
}

// wildcard finds the longest wildcard that matches the name.
func (t *table) wildcard(name string) *host {
	for {
		_, parent, ok := strings.Cut(name, ".")
		if !ok || parent == "" {
			return nil
		}
		if h := t.hosts["*."+parent]; h != nil {
			return h
		}
		name = parent
	}
}

// answer returns the records for an A or AAAA question, and false if the table does not have the name. A name that has
// only addresses of the other family has no records. turn selects the address that comes first.
func (t *table) answer(q dns.Question, turn uint32) (records []dns.RR, found bool) {
	h, alias := t.find(dns.CanonicalName(q.Name))
	if h == nil {
		return nil, false
	}
	owner := q.Name
	if alias != "" {
		records = append(records, &dns.CNAME{Hdr: header(owner, dns.TypeCNAME), Target: alias})
		owner = alias
	}
	ips := h.v4
	if q.Qtype == dns.TypeAAAA {
		ips = h.v6
	}
	for i := range ips {
		ip := ips[(i+int(turn%uint32(len(ips))))%len(ips)].AsSlice()
		if q.Qtype == dns.TypeA {
			records = append(records, &dns.A{Hdr: header(owner, dns.TypeA), A: ip})
		} else {
			records = append(records, &dns.AAAA{Hdr: header(owner, dns.TypeAAAA), AAAA: ip})
		}
	}
	return records, true
}

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}
