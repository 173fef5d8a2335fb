package input

import (
	"cmp"
	"slices"
	"strings"

	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/pkg/jwks"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// AuthorizationPolicies lists the policies that apply to the class's workloads: those of its own namespace before those
// of the root namespace, as in Istio, the oldest first.
func (r *Reader) AuthorizationPolicies() []*mesh.AuthorizationPolicy {
	return derive(r, mesh.Topic{Subject: subjectAuthorizationPolicies}, func(r *Reader) []*mesh.AuthorizationPolicy {
		return applying(r, mesh.SubjectAuthorizationPolicies, r.view.State().AuthorizationPolicies)
	}, slices.Equal)
}

// compiled are rules and what they were made from.
type compiled struct {
	policies []*mesh.AuthorizationPolicy
	options  authz.Options
	set      *authz.Set
}

// Rules are those of AuthorizationPolicies.
func (r *Reader) Rules() *authz.Set {
	return derive(r, mesh.Topic{Subject: subjectRules}, func(r *Reader) compiled {
		c := compiled{policies: r.AuthorizationPolicies()}
		if len(c.policies) == 0 {
			c.set = &authz.Set{}
			return c
		}
		c.options = authz.Options{TrustDomain: r.Mesh().GetTrustDomain(), Aliases: r.Mesh().GetTrustDomainAliases()}
		list := make([]authz.Policy, 0, len(c.policies))
		for _, p := range c.policies {
			list = append(list, authz.Policy{
				Namespace: p.Key.Namespace, Name: p.Key.Name, Spec: p.Spec, DryRun: authz.DryRun(p.Annotations),
				Closed: p.HeldClosed, Memo: p.Rules,
			})
		}
		c.set = authz.Compile(list, c.options)
		return c
	}, func(a, b compiled) bool {
		return slices.Equal(a.policies, b.policies) && a.options.Equal(b.options)
	}).set
}

// ConnectionRules are Rules for connections whose requests the proxy does not see. What is made of them is not made
// again when a policy changes in what exists in HTTP alone.
func (r *Reader) ConnectionRules() *authz.Set {
	return derive(r, mesh.Topic{Subject: subjectConnectionRules}, func(r *Reader) *authz.Set { return r.Rules().Connections() },
		(*authz.Set).Equal)
}

// Providers lists, sorted, the names of the authorization providers that the class's policies ask.
func (r *Reader) Providers() []string {
	return derive(r, mesh.Topic{Subject: subjectProviders}, func(r *Reader) []string {
		var out []string
		for _, p := range r.Rules().Custom {
			out = append(out, p.Name)
		}
		return out
	}, slices.Equal)
}

// PolicyFilters says which filters the class's policies need.
func (r *Reader) PolicyFilters() class.Filters {
	return derive(r, mesh.Topic{Subject: subjectPolicyFilters}, func(r *Reader) class.Filters {
		var need class.Filters
		if len(r.AuthorizationPolicies()) > 0 {
			need |= class.RBAC
		}
		if len(r.Providers()) > 0 {
			need |= class.ExtAuthz
		}
		if len(r.RequestAuthentications()) > 0 {
			need |= class.JWT
		}
		return need
	}, identical)
}

// ProviderService returns the service of an authorization provider, named by its host or as "NAMESPACE/HOST", whoever
// may see it; nil if there is none, or without a namespace if several namespaces have one.
func (r *Reader) ProviderService(name string) *configv1.Service {
	namespace, host, ok := strings.Cut(name, "/")
	if !ok {
		namespace, host = "", name
	}
	r.record(mesh.ServiceTopic(host))
	svc := r.view.State().ServiceAnywhere(host, namespace)
	r.trace.service(svc)
	return svc
}

// Provided returns the service at a port of a host if an authorization provider that the class's policies ask is there;
// nil otherwise. The proxy uses it whatever is exported to it and whatever its Sidecar imports. It comes before the one
// that Service returns: nobody can put a service of the provider's name in the provider's place.
func (r *Reader) Provided(host string, port uint32) *configv1.Service {
	for _, p := range r.Mesh().GetExtensionProviders() {
		service := cmp.Or(p.GetEnvoyExtAuthzHttp().GetService(), p.GetEnvoyExtAuthzGrpc().GetService())
		at := cmp.Or(p.GetEnvoyExtAuthzHttp().GetPort(), p.GetEnvoyExtAuthzGrpc().GetPort())
		if at != port || service != host && !strings.HasSuffix(service, "/"+host) {
			continue
		}
		// Only of a provider's cluster it is asked which policies there are: most clusters do not depend on them.
		if slices.Contains(r.Providers(), p.GetName()) {
			return r.ProviderService(service)
		}
	}
	return nil
}

// Keys returns the key set by which tokens of a rule are verified, as JSON; "" if there is no usable key.
func (r *Reader) Keys(rule *security.JWTRule) string {
	if rule.GetJwks() != "" {
		set, err := jwks.Parse([]byte(rule.GetJwks()))
		if err != nil {
			return ""
		}
		return string(set.Keys)
	}
	return string(r.Jwks(contract.KeySourceOf(rule.GetJwksUri(), rule.GetIssuer())).GetKeys())
}

// RequestAuthentications lists those that apply to the class's workloads, in the order of AuthorizationPolicies.
func (r *Reader) RequestAuthentications() []*mesh.RequestAuthentication {
	return derive(r, mesh.Topic{Subject: subjectRequestAuthentications}, func(r *Reader) []*mesh.RequestAuthentication {
		return applying(r, mesh.SubjectRequestAuthentications, r.view.State().RequestAuthentications)
	}, slices.Equal)
}

// applying lists the policies of the root namespace and of the client's that apply to the class. Where there are none,
// the answer is shared by all namespaces; where all apply to whole namespaces, by the namespace.
func applying[T mesh.PolicySpec](r *Reader, subject mesh.Subject, of func(namespace string) []*mesh.Config[T]) []*mesh.Config[T] {
	root := r.Mesh().GetRootNamespace()
	r.record(mesh.RootPoliciesTopic(subject, root))
	r.record(mesh.PoliciesTopics(subject, r.client())...)
	found := of(r.client())
	if r.client() != root {
		found = slices.Concat(found, of(root))
	}
	return slices.DeleteFunc(slices.Clone(found), func(p *mesh.Config[T]) bool {
		// Labels are looked at only where they count.
		if mesh.IsSelective(p) && !r.workload(root).Applies(p.Key.Namespace, p.Spec) {
			return true
		}
		traceOne(r.trace, p)
		return false
	})
}

func (r *Reader) workload(root string) authz.Workload {
	return authz.Workload{Namespace: r.Namespace(), Labels: r.Labels(), RootNamespace: root}
}
