package whole

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/credential"
	"fairlead.dev/services/config-watcher/internal/object"
)

// gateways calls f for each Gateway.
func (r *run) gateways(f func(*Object, *networking.Gateway)) {
	for _, o := range r.kind("Gateway") {
		if g, ok := o.Body.(*networking.Gateway); ok {
			f(o, g)
		}
	}
}

// checkGatewayPorts finds ports of Gateways to which no Service of their workloads leads.
func checkGatewayPorts(r *run) {
	r.gateways(func(o *Object, g *networking.Gateway) {
		served := map[string]bool{}
		workloads := r.selected("", g.GetSelector())
		found := !r.cfg.Partial // a Service may be elsewhere; without Kubernetes there is none
		for _, w := range workloads {
			for _, s := range r.servicesOf(w) {
				found = true
				for _, p := range s.Body.(*corev1.Service).Spec.Ports {
					served[targetOf(p)], served[fmt.Sprint(p.Port)] = true, true // a Service's port becomes its target port
					if w.spec != nil {
						served[fmt.Sprint(r.namedPort(w, p.TargetPort.StrVal))] = true
					}
				}
			}
		}
		for i, s := range g.GetServers() {
			if len(workloads) > 0 && found && !served[fmt.Sprint(s.GetPort().GetNumber())] {
				r.report(o, finding.GatewayPortNotInService, fmt.Sprintf("spec.servers[%d].port.number", i), s.GetPort().GetNumber(),
					"no Service of the gateway's workloads leads to the port",
					"add the port to the Service, or use a port or target port of one that it has")
			}
		}
	})
}

// checkSharedCertificates finds servers of two Gateways with one certificate and different hosts. A browser that has a
// connection to one of the hosts uses it for the other, which has no routes there.
func checkSharedCertificates(r *run) {
	type use struct {
		o     *Object
		field string
	}
	by := map[string][]use{}
	r.gateways(func(o *Object, g *networking.Gateway) {
		for i, s := range g.GetServers() {
			tls := s.GetTls()
			field := fmt.Sprintf("spec.servers[%d].tls", i)
			workloads := selectorText(g.GetSelector()) + "/"
			switch {
			case tls == nil || tls.GetMode() == networking.ServerTLSSettings_PASSTHROUGH ||
				tls.GetMode() == networking.ServerTLSSettings_ISTIO_MUTUAL:
			case tls.GetCredentialName() != "":
				by[workloads+tls.GetCredentialName()] = append(by[workloads+tls.GetCredentialName()], use{o, field + ".credentialName"})
			case tls.GetServerCertificate() != "":
				by[workloads+tls.GetServerCertificate()] = append(by[workloads+tls.GetServerCertificate()], use{o, field + ".serverCertificate"})
			}
		}
	})
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
	r.gateways(func(o *Object, g *networking.Gateway) {
		for i, s := range g.GetServers() {
			if s.GetTls() == nil {
				continue
			}
			namespaces := r.namespacesOf(r.selected("", g.GetSelector()))
			at := fmt.Sprintf("spec.servers[%d].tls.", i)
			look(o, namespaces, at+"credentialName", s.GetTls().GetCredentialName())
			look(o, namespaces, at+"caCertCredentialName", s.GetTls().GetCaCertCredentialName())
			for j, name := range s.GetTls().GetCredentialNames() {
				look(o, namespaces, fmt.Sprintf("%scredentialNames[%d]", at, j), name)
			}
		}
	})
	r.rules(func(o *Object, rule *networking.DestinationRule) {
		for _, p := range policyParts(rule) {
			look(o, []string{o.Key.Namespace}, p.field+".credentialName", p.tls.GetCredentialName())
		}
	})
	r.ingressCredentials(look)
}

func (r *run) namespacesOf(list []*workload) []string {
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
