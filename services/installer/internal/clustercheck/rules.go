package clustercheck

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"fairlead.dev/pkg/lists"
)

// Clocks: a certificate is refused before its time begins, and a token after its end.
const (
	clockWarning = 5 * time.Second
	clockFailed  = time.Minute
)

// server says whether a cluster answers.
func (r *report) server(f *Facts) {
	about := []*Facts{f}
	if f.away != nil {
		r.add(checkServer, Failed, "bring it back, or correct the context; nothing else of this cluster was checked", about,
			"the API server %s does not answer: %v", f.Config.Host, f.away)
		return
	}
	r.add(checkServer, OK, "", about, "Kubernetes %s at %s", f.version, f.Config.Host)
}

// alone has the checks of one cluster.
func (r *report) alone(f *Facts) {
	about := []*Facts{f}
	if !r.unknown(checkID, f) {
		switch {
		case f.id == "":
			r.add(checkID, Unknown, "make a remote Secret of it in the cluster whose control plane it shall have", about,
				"it has no control plane, and no cluster here reads it: nothing says which id it has")
		case f.controlPlane:
			r.add(checkID, OK, "", about, "it is %s, and has a control plane", f.id)
		default:
			r.add(checkID, OK, "", about, "it is %s, by the Secret with which another cluster reads it", f.id)
		}
	}
	r.unknown(checkTrust, f)
	if !r.unknown(checkRoots, f) {
		r.expiry(f)
	}
	r.unknown(checkNetwork, f)
	r.unknown(checkClock, f)
	r.unknown(checkPods, f)
	r.unknown(checkVIPs, f)
	r.unknown(checkServices, f)
	if !r.unknown(checkSecrets, f) {
		r.entries(f)
	}
}

// expiry looks at the time of the roots, by the clock of the API server.
func (r *report) expiry(f *Facts) {
	for _, c := range f.roots {
		if now := time.Now().Add(f.skew); now.After(c.NotAfter) {
			r.add(checkRoots, Warning, "remove it from the roots, after all workloads have certificates of another", []*Facts{f},
				"root %s (%s) has expired at %s", fingerprint(c), c.Subject, c.NotAfter.UTC().Format(time.RFC3339))
		}
	}
}

// entries looks at remote Secrets that have no effect.
func (r *report) entries(f *Facts) {
	about := []*Facts{f}
	first := map[string]*remote{}
	for _, e := range f.secrets {
		switch older := first[e.id]; {
		case older != nil:
			r.add(checkSecrets, Failed, "remove one of them", about, "Secrets %s and %s name the same cluster, %s; the older counts", older.secret,
				e.secret, e.id)
		case f.controlPlane && e.id == f.id:
			r.add(checkSecrets, Failed, "remove the key, or give the other cluster an id of its own", about,
				"Secret %s names a cluster %s, which is the id of this one", e.secret, e.id)
		default:
			first[e.id] = e
		}
	}
	if n := len(f.secrets); n > maxSecrets {
		r.add(checkSecrets, Warning, "remove some of them", about, "it names %d clusters, of which %d were tried", n, maxSecrets)
	}
}

// pair compares two clusters.
func (r *report) pair(a, b *Facts) {
	both := []*Facts{a, b}
	known := func(check string) bool { return a.unread[check] == nil && b.unread[check] == nil }
	switch {
	case !known(checkID) || a.id == "" || b.id == "":
	case a.id == b.id:
		r.add(checkID, Failed, "give each values.global.multiCluster.clusterName of its own", both, "both have the id %s", a.id)
	default:
		r.add(checkID, OK, "", both, "they have ids of their own, %s and %s", a.id, b.id)
	}
	if a.uid != "" && a.uid == b.uid {
		r.add(checkServer, Failed, "name two clusters", both, "both contexts lead to the same cluster")
	}
	if known(checkTrust) {
		r.trustDomains(a, b)
	}
	if known(checkRoots) {
		r.sharedRoots(a, b)
	}
	if known(checkNetwork) {
		r.networks(a, b)
	}
	for _, at := range [][2]*Facts{{a, b}, {b, a}} {
		if at[0].unread[checkSecrets] == nil && at[0].unread[checkID] == nil {
			r.reads(at[0], at[1])
		}
	}
	if known(checkClock) {
		r.clocks(a, b)
	}
	if known(checkVIPs) {
		if x, y, found := a.vips.overlap(b.vips); found {
			r.add(checkVIPs, Warning, "give them ranges of their own, if clients call services by VIPs that only the other cluster has; names work",
				both, "Services have the same addresses: %s and %s overlap", x, y)
		} else {
			r.add(checkVIPs, OK, "", both, "Services have addresses of their own")
		}
	}
	if known(checkServices) {
		r.compareServices(a, b)
	}
}

func (r *report) trustDomains(a, b *Facts) {
	both := []*Facts{a, b}
	switch {
	case !a.controlPlane || !b.controlPlane:
		r.add(checkTrust, OK, "", both, "one control plane alone says which")
	case a.trustDomain == b.trustDomain:
		r.add(checkTrust, OK, "", both, "both are in %s", a.trustDomain)
	case slices.Contains(a.aliases, b.trustDomain) && slices.Contains(b.aliases, a.trustDomain):
		r.add(checkTrust, Warning, "see that authorization policies mean what they say; one trust domain is simpler", both,
			"they are in %s and %s, and each has the other's as alias", a.trustDomain, b.trustDomain)
	default:
		r.add(checkTrust, Failed, "set meshConfig.trustDomain to the same, or each other's in trustDomainAliases", both,
			"they are in %s and %s: workloads of one do not accept those of the other", a.trustDomain, b.trustDomain)
	}
}

func (r *report) sharedRoots(a, b *Facts) {
	both := []*Facts{a, b}
	only := func(x, y *Facts) []string {
		var out []string
		for _, c := range x.roots {
			if !slices.ContainsFunc(y.roots, c.Equal) {
				out = append(out, fingerprint(c))
			}
		}
		return out
	}
	inA, inB := only(a, b), only(b, a)
	names := func(all []*x509.Certificate) string { return strings.Join(lists.Map(all, fingerprint), ", ") }
	const remedy = "sign both by one root, or give each ca the other's with --extra-roots-file"
	switch {
	case len(inA) == 0 && len(inB) == 0:
		r.add(checkRoots, OK, "", both, "both trust the same roots, %s", names(a.roots))
	case len(inA) == len(a.roots) && len(inB) == len(b.roots):
		r.add(checkRoots, Failed, remedy, both, "they trust different roots, %s and %s: no call from one to the other has mutual TLS",
			names(a.roots), names(b.roots))
	default:
		r.add(checkRoots, Warning, remedy+"; during a rotation this is so for a while", both,
			"not all roots are trusted by both: %s by %s alone, %s by %s alone", cmp.Or(strings.Join(inA, ", "), "none"), a.Context,
			cmp.Or(strings.Join(inB, ", "), "none"), b.Context)
	}
}

func (r *report) networks(a, b *Facts) {
	both := []*Facts{a, b}
	const label = "label the namespace of the control plane in each with " + labelNetwork
	x, y, overlap := a.pods.overlap(b.pods)
	known := a.unread[checkPods] == nil && b.unread[checkPods] == nil
	switch {
	case (a.network == "") != (b.network == ""):
		named, other := a, b
		if a.network == "" {
			named, other = b, a
		}
		r.add(checkNetwork, Failed, label+", or neither", both, "%s is network %s, %s has no name: that its Pods are elsewhere is not known",
			named.Context, named.network, other.Context)
	case a.network != b.network:
		r.add(checkNetwork, OK, "", both, "they are two networks, %s and %s", a.network, b.network)
		r.entrance(a)
		r.entrance(b)
		if known && overlap {
			r.add(checkPods, OK, "", both, "Pods have the same addresses (%s and %s overlap), which two networks may", x, y)
		}
		return
	case overlap && known:
		r.add(checkNetwork, Failed, label+", two names", both, "both are network %q, and cannot be one: their Pods have the same addresses",
			a.network)
	default:
		r.add(checkNetwork, OK, "", both, "they are one network, %q: Pods must reach each other by their addresses", a.network)
	}
	switch {
	case !known:
	case overlap:
		r.add(checkPods, Failed, "give the clusters ranges of their own, or make them two networks with gateways", both,
			"Pods have the same addresses: %s and %s overlap", x, y)
	default:
		r.add(checkPods, OK, "", both, "Pods have addresses of their own")
	}
}

// entrance looks for the gateway into a cluster's network.
func (r *report) entrance(f *Facts) {
	about := []*Facts{f}
	if r.unknown(checkGateways, f) {
		return
	}
	// Each pair asks.
	if slices.ContainsFunc(r.rows, func(row Row) bool {
		return row.Check == checkGateways && len(row.Clusters) == 1 && row.Clusters[0] == f.Context
	}) {
		return
	}
	if len(f.gateways) == 0 {
		r.add(checkGateways, Failed, "install an east-west gateway whose Service has the label "+labelNetwork+"="+f.network, about,
			"no Service is the gateway of network %s: its endpoints cannot be reached from other networks", f.network)
	}
	for _, g := range f.gateways {
		switch {
		case !g.open:
			r.add(checkGateways, Failed, "add the port, or name another with the label "+labelGatewayPort, about,
				"Service %s has no port %s, by which other networks call", g.name, g.port)
		case len(g.addresses) > 0:
			r.add(checkGateways, OK, "", about, "Service %s leads into network %s, at %s port %s", g.name, f.network,
				strings.Join(g.addresses, ", "), g.port)
		case len(g.hosts) > 0:
			r.named(f, &g)
		default:
			r.add(checkGateways, Failed, "wait for its balancer, or set spec.externalIPs", about,
				"Service %s has no address that other networks can call", g.name)
		}
	}
}

// named looks at a gateway whose balancer has a name, which config-watcher resolves.
func (r *report) named(f *Facts, g *gateway) {
	about, hosts := []*Facts{f}, strings.Join(g.hosts, ", ")
	usable := lists.Filter(g.resolved, func(a netip.Addr) bool {
		return !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast() && !a.IsUnspecified()
	})
	switch {
	case len(usable) > 0:
		r.add(checkGateways, OK, "", about, "Service %s leads into network %s, at %s (%s) port %s", g.name, f.network, hosts,
			strings.Join(lists.Map(usable, netip.Addr.String), ", "), g.port)
	case len(g.resolved) > 0:
		r.add(checkGateways, Failed, "correct the name's records, or set spec.externalIPs", about,
			"Service %s has the name %s, which resolves to %s: proxies are never sent to such an address", g.name, hosts, g.resolved[0])
	default:
		r.add(checkGateways, Warning, "see that config-watcher resolves it, or set spec.externalIPs", about,
			"Service %s has no address, but the name %s, which cannot be resolved from here: %v", g.name, hosts, g.unresolved)
	}
}

// reads looks whether a control plane reads another cluster.
func (r *report) reads(f, other *Facts) {
	both := []*Facts{f, other}
	if !f.controlPlane {
		r.add(checkSecrets, OK, "", both, "%s has no control plane that would read %s", f.Context, other.Context)
		return
	}
	i := slices.IndexFunc(f.secrets, func(e *remote) bool {
		return other.uid != "" && e.uid == other.uid || other.id != "" && e.id == other.id && (e.uid == "" || other.uid == "")
	})
	renew := fmt.Sprintf("fairlead create-remote-secret --context %s --name %s --to %s", other.Context, cmp.Or(other.id, "ID"), f.Context)
	if i < 0 {
		if wrong := slices.IndexFunc(f.secrets, func(e *remote) bool { return other.id != "" && e.id == other.id }); wrong >= 0 {
			r.add(checkSecrets, Failed, renew, both, "Secret %s says that it leads to %s, and leads to another cluster, at %s",
				f.secrets[wrong].secret, other.id, f.secrets[wrong].server)
			return
		}
		r.add(checkSecrets, Failed, renew, both, "no Secret in %s leads to %s: its services and endpoints are not read", f.Context, other.Context)
		return
	}
	e := f.secrets[i]
	switch {
	case other.id != "" && e.id != other.id:
		r.add(checkSecrets, Failed, renew+", and remove the other", both, "Secret %s calls %s %s; it calls itself %s", e.secret, other.Context,
			e.id, other.id)
	case e.err != nil && e.elsewhere == nil:
		r.add(checkSecrets, Failed, renew+" --rotate", both, "the credential of Secret %s does not work at %s: %v", e.secret,
			cmp.Or(e.server, "its API server"), e.err)
	case e.err != nil:
		r.add(checkSecrets, Failed, renew+" --rotate", both, "the credential of Secret %s does not work: %v", e.secret, e.err)
	case len(e.lacks) > 0:
		r.add(checkSecrets, Failed, "let the account of the token read: ClusterRole fairlead-reader, which create-remote-secret and the profile "+
			"remote make", both, "the account of Secret %s lacks rights: %s", e.secret, strings.Join(e.lacks, ", "))
	case e.elsewhere != nil:
		r.add(checkSecrets, Warning, "see with `fairlead remote-clusters` that the control plane reaches it", both,
			"the credential of Secret %s works; its address %s cannot be reached from here: %v", e.secret, e.server, e.elsewhere)
	default:
		r.add(checkSecrets, OK, "", both, "%s reads %s by Secret %s, whose credential works", f.Context, other.Context, e.secret)
	}
}

func (r *report) clocks(a, b *Facts) {
	both := []*Facts{a, b}
	apart := (a.skew - b.skew).Abs().Round(time.Second)
	const remedy = "synchronise the clocks of the nodes"
	switch {
	case apart >= clockFailed:
		r.add(checkClock, Failed, remedy, both, "their clocks are %s apart: certificates and tokens of one are not valid in the other", apart)
	case apart >= clockWarning:
		r.add(checkClock, Warning, remedy, both, "their clocks are %s apart", apart)
	default:
		r.add(checkClock, OK, "", both, "their clocks agree")
	}
}
