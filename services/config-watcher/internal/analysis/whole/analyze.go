// Package whole looks at a whole mesh at once, for `config-watcher analyze`, which `fairlead analyze` runs. It judges
// each object with package validate and the references between objects with package running, as a running mesh does.
// Its own checks need more than a mesh reads: Deployments, the containers and annotations of Pods, labels of
// namespaces, webhooks, the dates of certificates.
//
// Mesh.Load takes over an object, of files (ReadFiles) or of an API server (package apiserver). Mesh.Analyze returns
// the findings, without those that the user suppresses. Each check is a function of the mesh that calls run.report, and
// a row in checks; each code has a row in package finding.
package whole

import (
	"context"
	"slices"
	"strings"

	mesh "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/meshdefaults"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/analysis/running"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/meshconfig"
)

// checks lists the checks, each a function of the whole mesh.
var checks = []func(*run){
	checkAnnotations, checkInjectionLabels, checkNamespaces, checkPods, checkSidecars, checkProxyImages, checkUsers, checkImageAuto,
	checkWebhooks,
	checkPortNames, checkExternalNames, checkSharedPorts, checkServiceSelectors, checkHiddenServices,
	checkDestinationPorts, checkRouteOrder, checkGatewayHosts, checkGatewaySubsets, checkRegularExpressions,
	checkSubsets, checkServerVerification, checkMutualTLS,
	checkGatewayPorts, checkSharedCertificates, checkCertificateDates,
	checkSelectors, checkSelectorConflicts, checkTelemetryProviders, checkReach,
	checkEntryAddresses, checkEntryProtocols, checkNetworks, checkMeshNetworks, checkDiscovery,
	checkPatches, checkConditions, checkJWKS, checkGatewayAPI, checkAttachedRoutes, checkGatewayStatuses,
	checkSources, checkEnforcement, checkClaimRoutes,
}

// run is one call of Analyze, or of Credentials.
type run struct{ *Mesh }

// Result of an analysis.
type Result struct {
	// Messages are sorted, the worst first.
	Messages []finding.Finding
	// Suppressed is the number of messages that the user suppresses.
	Suppressed int
	// Skipped are the codes that were not looked for, because objects that may exist are not known; sorted.
	Skipped []finding.Code
}

// Analyze runs all checks on the objects that were loaded. Call it once.
func (m *Mesh) Analyze(ctx context.Context, suppress []Suppression) (Result, error) {
	m.index()
	m.settings = m.effectiveSettings()
	m.references()
	for _, check := range checks {
		if err := ctx.Err(); err != nil {
			return Result{}, err
		}
		m.check(check)
	}
	unknown := m.unknown()
	var out Result
	for _, d := range finding.Descriptions() {
		if slices.ContainsFunc(d.Needs, func(need string) bool { return unknown[need] }) {
			out.Skipped = append(out.Skipped, d.Code)
		}
	}
	slices.Sort(out.Skipped)
	for _, msg := range finding.SortWorst(specific(m.messages)) {
		o := m.objects[msg.Key]
		switch {
		case slices.Contains(out.Skipped, msg.Code):
		case o != nil && suppressedBy(o.Annotations, msg), slices.ContainsFunc(suppress, func(s Suppression) bool { return s.holds(msg) }):
			out.Suppressed++
		default:
			out.Messages = append(out.Messages, msg)
		}
	}
	return out, nil
}

// specific leaves out what validation says of a field without effect where a check says more about the field.
func specific(list []finding.Finding) []finding.Finding {
	type place struct {
		key   object.Key
		field string
	}
	said := map[place]bool{}
	for _, m := range list {
		if m.Code != finding.FieldWithoutEffect {
			said[place{m.Key, m.Field}] = true
		}
	}
	return slices.DeleteFunc(list, func(m finding.Finding) bool {
		return m.Code == finding.FieldWithoutEffect && said[place{m.Key, m.Field}]
	})
}

// check runs a check; a panic becomes a message, so that the other checks count.
func (m *Mesh) check(check func(*run)) {
	defer func() {
		if p := recover(); p != nil {
			m.messages = append(m.messages, finding.Finding{Code: finding.InternalError, Severity: finding.Error,
				Problem: object.Problem{
					Value: object.Quote(p), Reason: "a check has failed", Remedy: "report this mesh as a defect of Fairlead",
				}})
		}
	}()
	check(&run{m})
}

// effectiveSettings is the mesh configuration that holds.
func (m *Mesh) effectiveSettings() *mesh.MeshConfig {
	if m.cfg.Settings != nil {
		return m.cfg.Settings
	}
	if o := m.meshConfigOf(); o != nil && o.Valid != nil {
		if b, ok := o.Valid.Body.(*corev1.ConfigMap); ok {
			if settings, _, problems := meshconfig.Parse("", []byte(b.Data[kinds.MeshKey])); len(problems) == 0 && settings != nil {
				return settings
			}
		}
	}
	return meshdefaults.MeshConfig()
}

// references runs the checks of a running mesh: references to missing objects, and objects that older ones leave
// without effect.
func (m *Mesh) references() {
	running := running.New(m.cfg.Domain)
	running.Separate(m.tenancy().Enabled)
	running.Configure(m.settings)
	var changes []normalise.Change
	for _, o := range m.objects {
		switch {
		case o.Valid != nil:
			changes = append(changes, normalise.Change{Key: o.Key, Object: o.Valid})
		case o.Key.Group == "" && o.Key.Kind == "Secret": // refused: it is there, and cannot be used
			changes = append(changes, normalise.Change{Key: o.Key, Object: &object.Object{Key: o.Key}})
		}
	}
	for _, w := range m.workloads {
		if w.Valid == nil { // a template stands for its Pods
			k := object.Key{Kind: "Pod", Namespace: w.Key.Namespace, Name: strings.ToLower(w.Key.Kind) + "/" + w.Key.Name}
			changes = append(changes, normalise.Change{Key: k,
				Object: &object.Object{Key: k, Labels: w.labels, Annotations: w.annotations, Body: &object.Pod{}}})
		}
	}
	slices.SortFunc(changes, func(a, b normalise.Change) int { return a.Key.Compare(b.Key) })
	running.Apply(m.discovered(changes))
	running.Analyze(0)
	for _, f := range running.All() {
		if o := m.objects[f.Key]; o != nil {
			m.problem(o, f.Code, f.Problem)
		}
	}
}

// discovered leaves out the objects of namespaces that discoverySelectors do not select.
func (m *Mesh) discovered(changes []normalise.Change) []normalise.Change {
	if len(m.settings.GetDiscoverySelectors()) == 0 {
		return changes
	}
	mesh := normalise.New(normalise.Config{Domain: m.cfg.Domain})
	var credentials, rest []normalise.Change
	for _, c := range changes {
		if kinds.IsCredential(c.Key) && !kinds.IsMeshConfig(c.Key) {
			credentials = append(credentials, c)
		} else {
			rest = append(rest, c)
		}
	}
	return append(mesh.Apply(rest).Discovered, credentials...)
}

// unknown lists what cannot be known to be missing.
func (m *Mesh) unknown() map[string]bool {
	out := map[string]bool{}
	for _, kind := range m.cfg.Unreadable {
		out[kind] = true
		switch kind {
		case "Pod":
			out[finding.AnyWorkload] = true
		case "Service", "ServiceEntry":
			out[finding.AnyService] = true
		}
	}
	if !m.cfg.Partial {
		return out
	}
	for _, d := range finding.Descriptions() {
		for _, need := range d.Needs {
			switch need {
			case finding.AnyWorkload:
				out[need] = out[need] || len(m.workloads) == 0
			case finding.AnyService:
				out[need] = out[need] || len(m.byKind["Service"])+len(m.byKind["ServiceEntry"]) == 0
			default:
				out[need] = out[need] || len(m.byKind[need]) == 0
			}
		}
	}
	return out
}
