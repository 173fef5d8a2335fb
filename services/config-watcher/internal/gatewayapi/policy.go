package gatewayapi

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
)

// maxAncestors is how many ancestors the status of a policy may have.
const maxAncestors = 16

// targetsOf are the Services that a policy targets.
func targetsOf(o *object.Object) []Name {
	var out []Name
	for _, ref := range o.Body.(*gatewayv1.BackendTLSPolicy).Spec.TargetRefs {
		if ref.Group == "" && ref.Kind == service {
			out = append(out, Name{Namespace: o.Key.Namespace, Name: string(ref.Name)})
		}
	}
	return out
}

func sectionOf(ref *gatewayv1.LocalPolicyTargetReferenceWithSectionName) string {
	if ref.SectionName == nil {
		return ""
	}
	return string(*ref.SectionName)
}

// policy judges a BackendTLSPolicy again.
func (s *State) policy(k object.Key) {
	o := s.objects[k]
	if o == nil {
		s.lookup(k).done()
		s.emit(k, nil, nil)
		return
	}
	l := s.lookup(k)
	spec := &o.Body.(*gatewayv1.BackendTLSPolicy).Spec
	out := &configv1.BackendTLS{Hostname: string(spec.Validation.Hostname)}
	for _, san := range spec.Validation.SubjectAltNames {
		if san.Type == gatewayv1.URISubjectAltNameType {
			out.SubjectAltNames = append(out.SubjectAltNames, string(san.URI))
		} else {
			out.SubjectAltNames = append(out.SubjectAltNames, string(san.Hostname))
		}
	}
	invalid, unresolved := l.validation(o, &spec.Validation, out)
	refused := l.targets(o, spec, out)
	if invalid != nil {
		out.Unusable, out.Authorities, out.SystemAuthorities = true, "", false
		refused = cmp.Or(refused, invalid)
	}
	status := l.ancestors(o, spec, refused, unresolved)
	l.done()
	if len(out.Targets) == 0 {
		s.emit(k, nil, status)
		return
	}
	r := config(o)
	r.Object = &configv1.GatewayAPIConfig_BackendTls{BackendTls: out}
	s.emit(k, r, status)
}

// validation resolves the authorities. Invalid is why the policy cannot be followed at all, and unresolved the first
// reference that cannot be resolved.
func (l *lookup) validation(
	o *object.Object, in *gatewayv1.BackendTLSPolicyValidation, out *configv1.BackendTLS,
) (invalid, unresolved *finding) {
	switch known := in.WellKnownCACertificates; {
	case len(in.CACertificateRefs) > 0:
	case known != nil && *known == gatewayv1.WellKnownCACertificatesSystem:
		out.SystemAuthorities = true
		return nil, nil
	default:
		return &finding{
			string(gatewayv1.PolicyReasonInvalid), "validation: give caCertificateRefs, or System as wellKnownCACertificates",
		}, nil
	}
	for i, ref := range in.CACertificateRefs {
		at := fmt.Sprintf("validation.caCertificateRefs[%d]: ", i)
		problem := func(reason gatewayv1.PolicyConditionReason, message string) {
			unresolved = cmp.Or(unresolved, &finding{string(reason), at + message})
		}
		if ref.Group != "" || ref.Kind != configMap {
			problem(gatewayv1.BackendTLSPolicyReasonInvalidKind,
				fmt.Sprintf("%s of group %q is not supported; use a ConfigMap", ref.Kind, ref.Group))
			continue
		}
		text, message := l.authority(Name{Namespace: o.Key.Namespace, Name: string(ref.Name)})
		if message != "" {
			problem(gatewayv1.BackendTLSPolicyReasonInvalidCACertificateRef, message)
			continue
		}
		out.Authorities = joinPEM(out.Authorities, text)
	}
	if out.Authorities == "" {
		return &finding{
			string(gatewayv1.BackendTLSPolicyReasonNoValidCACertificate), "no certificate of an authority is valid: " + unresolved.message,
		}, unresolved
	}
	return nil, unresolved
}

// targets finds the targets that the policy has: those that no older policy has. It returns why there is none.
func (l *lookup) targets(o *object.Object, spec *gatewayv1.BackendTLSPolicySpec, out *configv1.BackendTLS) *finding {
	var refused *finding
	refuse := func(reason gatewayv1.PolicyConditionReason, format string, args ...any) {
		refused = cmp.Or(refused, &finding{string(reason), fmt.Sprintf(format, args...)})
	}
	for i := range spec.TargetRefs {
		ref := &spec.TargetRefs[i]
		if ref.Group != "" || ref.Kind != service {
			refuse(gatewayv1.PolicyReasonInvalid, "targetRefs[%d]: %s of group %q is not supported; use a Service", i, ref.Kind, ref.Group)
			continue
		}
		n, section := Name{Namespace: o.Key.Namespace, Name: string(ref.Name)}, sectionOf(ref)
		found := l.service(n)
		if found == nil {
			refuse(gatewayv1.PolicyReasonTargetNotFound, "targetRefs[%d]: there is no Service %s", i, n)
			continue
		}
		target := &configv1.BackendTLSTarget{Hostname: l.host(n)}
		for _, p := range found.Body.(*corev1.Service).Spec.Ports {
			if section != "" && p.Name == section {
				target.Port = uint32(p.Port) //nolint:gosec // a port
			}
		}
		if section != "" && target.Port == 0 {
			refuse(gatewayv1.PolicyReasonTargetNotFound, "targetRefs[%d]: Service %s has no port %q", i, n, section)
			continue
		}
		if older := l.olderPolicy(o, n, section); older != nil {
			refuse(gatewayv1.PolicyReasonConflicted, "targetRefs[%d]: BackendTLSPolicy %s %s", i, nameOf(older.Key), object.Precedence(older, o))
			continue
		}
		out.Targets = append(out.Targets, target)
	}
	slices.SortFunc(out.Targets, func(a, b *configv1.BackendTLSTarget) int {
		return cmp.Or(strings.Compare(a.GetHostname(), b.GetHostname()), cmp.Compare(a.GetPort(), b.GetPort()))
	})
	out.Targets = slices.CompactFunc(out.Targets, func(a, b *configv1.BackendTLSTarget) bool {
		return a.GetHostname() == b.GetHostname() && a.GetPort() == b.GetPort()
	})
	if len(out.Targets) > 0 {
		return nil
	}
	return refused
}

// olderPolicy finds a policy that has a target before another; nil if there is none.
func (l *lookup) olderPolicy(o *object.Object, target Name, section string) *object.Object {
	l.read(policiesOf(target))
	for _, other := range l.policies[target] {
		if other.Key == o.Key || olderFirst(other, o) > 0 {
			continue
		}
		refs := other.Body.(*gatewayv1.BackendTLSPolicy).Spec.TargetRefs
		for i := range refs {
			if refs[i].Group == "" && refs[i].Kind == service && string(refs[i].Name) == target.Name && sectionOf(&refs[i]) == section {
				return other
			}
		}
	}
	return nil
}

// ancestors makes the status: one entry for each Gateway whose routes lead to a target; nil if there is none.
func (l *lookup) ancestors(o *object.Object, spec *gatewayv1.BackendTLSPolicySpec, refused, unresolved *finding) *Status {
	gateways := map[Name]gatewayv1.GatewayController{}
	for _, target := range targetsOf(o) {
		l.read(routedTo(target))
		for n := range l.routed[target] {
			l.read(key(Gateway, n))
			if g := l.gateways[n]; g != nil {
				gateways[n] = g.controller
			}
		}
	}
	if len(gateways) == 0 {
		return nil
	}
	var list []metav1.Condition
	add := func(typ gatewayv1.PolicyConditionType, f *finding, reason gatewayv1.PolicyConditionReason, message string) {
		if f == nil {
			f = &finding{string(reason), message}
		}
		list = append(list, condition(o.Generation, string(typ), f.reason == string(reason), f.reason, object.Cut(f.message, maxMessage)))
	}
	message := "gateways follow the policy"
	if len(spec.Options) > 0 {
		message += "; spec.options has no effect"
	}
	add(gatewayv1.PolicyConditionAccepted, refused, gatewayv1.PolicyReasonAccepted, message)
	add(gatewayv1.BackendTLSPolicyConditionResolvedRefs, unresolved, gatewayv1.BackendTLSPolicyReasonResolvedRefs,
		"all references are resolved")
	status := &gatewayv1.PolicyStatus{}
	for _, n := range slices.SortedFunc(maps.Keys(gateways), compareNames) {
		if len(status.Ancestors) == maxAncestors {
			break
		}
		group, kind, namespace := gatewayv1.Group(Group), gatewayv1.Kind(Gateway), gatewayv1.Namespace(n.Namespace)
		status.Ancestors = append(status.Ancestors, gatewayv1.PolicyAncestorStatus{
			AncestorRef:    gatewayv1.ParentReference{Group: &group, Kind: &kind, Namespace: &namespace, Name: gatewayv1.ObjectName(n.Name)},
			ControllerName: gateways[n], Conditions: list,
		})
	}
	return &Status{Policy: status}
}
