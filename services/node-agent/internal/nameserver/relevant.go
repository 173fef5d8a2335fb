package nameserver

import (
	"slices"

	"github.com/miekg/dns"
)

// maxAliases bounds the CNAME records that are followed from the name asked for.
const maxAliases = 16

// relevant returns the part of an upstream answer that is about the question: the records of the name and of the names
// that CNAME records lead to, and of the authority section the SOA and NSEC records of a negative answer. It drops all
// other records, which a forger could have added. It cuts TTLs to maxAge and spells the name as the question does.
func relevant(q dns.Question, answer *dns.Msg) *dns.Msg {
	names := chain(q, answer.Answer)
	out := &dns.Msg{MsgHdr: answer.MsgHdr, Question: []dns.Question{q}}
	if out.Rcode > 0xf { // its upper bits are in the OPT record, which adapt sets for each client
		out.Rcode = dns.RcodeServerFailure
	}
	for _, r := range answer.Answer {
		h := r.Header()
		owner := dns.CanonicalName(h.Name)
		of := h.Class == q.Qclass && slices.Contains(names, owner)
		switch kind := kindOf(r); {
		case of && kind == dns.TypeCNAME:
		case of && (kind == q.Qtype || q.Qtype == dns.TypeANY) && out.Rcode != dns.RcodeNameError:
			// A name that does not exist (NXDOMAIN) has no records.
		case h.Class == q.Qclass && kind == dns.TypeDNAME && slices.ContainsFunc(names, func(n string) bool { return dns.IsSubDomain(owner, n) }):
		default:
			continue
		}
		out.Answer = append(out.Answer, trimmed(r, q))
	}
	for _, r := range answer.Ns {
		h := r.Header()
		if h.Class != q.Qclass {
			continue
		}
		switch kindOf(r) {
		case dns.TypeSOA:
			if !slices.ContainsFunc(names, func(n string) bool { return dns.IsSubDomain(dns.CanonicalName(h.Name), n) }) {
				continue
			}
		case dns.TypeNSEC, dns.TypeNSEC3:
		default:
			continue
		}
		out.Ns = append(out.Ns, trimmed(r, q))
	}
	return out
}

// chain returns the name asked for and the names that CNAME records lead to, in canonical form.
func chain(q dns.Question, records []dns.RR) []string {
	names := []string{dns.CanonicalName(q.Name)}
	targets := map[string]string{}
	for _, r := range records {
		if c, ok := r.(*dns.CNAME); ok && c.Hdr.Class == q.Qclass {
			targets[dns.CanonicalName(c.Hdr.Name)] = dns.CanonicalName(c.Target)
		}
	}
	if q.Qtype == dns.TypeCNAME || q.Qtype == dns.TypeANY {
		return names
	}
	for len(names) <= maxAliases {
		next, ok := targets[names[len(names)-1]]
		if !ok || slices.Contains(names, next) {
			break
		}
		names = append(names, next)
	}
	return names
}

// kindOf is a record's type, and for a signature the type that it covers.
func kindOf(r dns.RR) uint16 {
	if s, ok := r.(*dns.RRSIG); ok {
		return s.TypeCovered
	}
	return r.Header().Rrtype
}

// trimmed is a copy of a record with its TTL cut and its name spelt as in the question.
func trimmed(r dns.RR, q dns.Question) dns.RR {
	r = dns.Copy(r)
	h := r.Header()
	h.Ttl = min(h.Ttl, maxAgeSeconds)
	if dns.CanonicalName(h.Name) == dns.CanonicalName(q.Name) {
		h.Name = q.Name
	}
	return r
}
