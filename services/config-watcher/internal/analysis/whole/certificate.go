package whole

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	networking "istio.io/api/networking/v1alpha3"
	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/analysis/running"
	"fairlead.dev/services/config-watcher/internal/credential"
	"fairlead.dev/services/config-watcher/internal/ingress"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// checkSharedCertificates finds servers of two Gateways with one certificate and different hosts. A browser that has a
// connection to one of the hosts uses it for the other, which has no routes there.
func checkSharedCertificates(r *run) {
	type use struct {
		o     *Object
		field string
	}
	by := map[string][]use{}
	for o, g := range bodies[*networking.Gateway](r, "Gateway") {
		for i, s := range g.GetServers() {
			tls := s.GetTls()
			field := fmt.Sprintf("spec.servers[%d].tls", i)
			workloads := object.LabelText(g.GetSelector()) + "/"
			switch {
			case tls == nil || tls.GetMode() == networking.ServerTLSSettings_PASSTHROUGH ||
				tls.GetMode() == networking.ServerTLSSettings_ISTIO_MUTUAL:
			case tls.GetCredentialName() != "":
				by[workloads+tls.GetCredentialName()] = append(by[workloads+tls.GetCredentialName()], use{o, field + ".credentialName"})
			case tls.GetServerCertificate() != "":
				by[workloads+tls.GetServerCertificate()] = append(by[workloads+tls.GetServerCertificate()], use{o, field + ".serverCertificate"})
			}
		}
	}
	for key, uses := range by {
		owners := map[string]bool{}
		for _, u := range uses {
			owners[u.o.Key.Namespace+"/"+u.o.Key.Name] = true
		}
		if len(owners) < 2 {
			continue
		}
		_, certificate, _ := strings.Cut(key, "/")
		all := slices.Sorted(maps.Keys(owners))
		for _, u := range uses {
			self := u.o.Key.Namespace + "/" + u.o.Key.Name
			others := slices.DeleteFunc(slices.Clone(all[:min(len(all), maxNamed+2)]), func(name string) bool { return name == self })
			r.report(u.o, finding.CertificateShared, u.field, certificate,
				fmt.Sprintf("Gateway %s uses the certificate as well: clients that use one HTTP/2 connection for both hosts get 404 there",
					sentence(others)),
				"put the hosts into one Gateway, or use two certificates")
		}
	}
}

// soon is how long before its end a certificate is told of.
const soon = 30 * 24 * time.Hour

// checkCertificateDates finds credentials of Gateways, DestinationRules and Ingresses whose certificate has ended or
// ends soon.
func checkCertificateDates(r *run) {
	told := map[object.Key]bool{}
	look := func(o *Object, namespaces []string, field, name string) {
		at := credential.WithoutScheme(name)
		if at == "" {
			return
		}
		for _, ns := range namespaces {
			if _, rest, found := strings.Cut(at, "/"); found {
				at = rest
			}
			s := r.get("", "Secret", ns, at)
			if s == nil || told[s.Key] {
				continue
			}
			told[s.Key] = true
			r.certificateDates(o, s, field, name)
		}
	}
	for o, g := range bodies[*networking.Gateway](r, "Gateway") {
		namespaces := namespacesOf(r.selected("", g.GetSelector()))
		for field, name := range serverCredentials(g) {
			look(o, namespaces, field, name)
		}
	}
	for o, rule := range bodies[*networking.DestinationRule](r, "DestinationRule") {
		for _, p := range running.TLSParts(rule) {
			look(o, []string{o.Key.Namespace}, p.Field+".credentialName", p.TLS.GetCredentialName())
		}
	}
	r.ingressCredentials(look)
	r.listenerCredentials(look)
}

// serverCredentials yields the credentials that the servers of a Gateway name, with their fields.
func serverCredentials(g *networking.Gateway) iter.Seq2[string, string] {
	return func(yield func(field, name string) bool) {
		for i, s := range g.GetServers() {
			at := fmt.Sprintf("spec.servers[%d].tls.", i)
			if !yield(at+"credentialName", s.GetTls().GetCredentialName()) ||
				!yield(at+"caCertCredentialName", s.GetTls().GetCaCertCredentialName()) {
				return
			}
			for field, name := range manifest.Items(at+"credentialNames", s.GetTls().GetCredentialNames()) {
				if !yield(field, name) {
					return
				}
			}
		}
	}
}

// namespacesOf lists the namespaces of workloads, sorted.
func namespacesOf(list []*workload) []string {
	var out []string
	for _, w := range list {
		out = append(out, w.Key.Namespace)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// certificateDates reports the first certificate of a Secret that has ended, or ends soon.
func (r *run) certificateDates(o, s *Object, field, name string) {
	c, _ := s.Body.(*object.Credential)
	if c == nil {
		return
	}
	for _, chain := range [][]byte{c.Proto().GetCertificateChain(), c.Proto().GetCaCertificates()} {
		for block, rest := pem.Decode(chain); block != nil; block, rest = pem.Decode(rest) {
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				continue
			}
			what := fmt.Sprintf("certificate %q of Secret %s/%s", cert.Subject.CommonName, s.Key.Namespace, s.Key.Name)
			switch at := cert.NotAfter.UTC().Format(time.DateTime) + " UTC"; {
			case r.cfg.Now.After(cert.NotAfter):
				r.report(o, finding.CredentialExpired, field, name, what+" ended at "+at+": handshakes fail", "renew it")
				return
			case r.cfg.Now.Before(cert.NotBefore):
				r.report(o, finding.CredentialExpired, field, name, what+" begins only at "+cert.NotBefore.UTC().Format(time.DateTime)+" UTC",
					"wait, or issue it again")
				return
			case cert.NotAfter.Sub(r.cfg.Now) < soon:
				r.report(o, finding.CredentialExpiring, field, name, what+" ends at "+at, "renew it")
				return
			}
		}
	}
}

// ingressCredentials calls do with each secretName of the Ingresses that the mesh serves, and the namespaces of the
// gateways that serve them.
func (r *run) ingressCredentials(do func(o *Object, namespaces []string, field, name string)) {
	settings, classes := r.effectiveSettings(), ingress.Classes{}
	for _, o := range r.kind("IngressClass") {
		if o.Valid != nil {
			classes.Put(o.Key.Name, o.Valid)
		}
	}
	var gateways []string
	for i, o := range r.kind("Ingress") {
		if i == 0 {
			gateways = namespacesOf(r.selected("", ingress.Selector(settings)))
		}
		if o.Valid == nil || ingress.Takes(settings, o.Valid, classes.Get) != ingress.Taken {
			continue
		}
		for j, t := range o.Valid.Body.(*networkingv1.Ingress).Spec.TLS {
			do(o, gateways, fmt.Sprintf("spec.tls[%d].secretName", j), t.SecretName)
		}
	}
}
