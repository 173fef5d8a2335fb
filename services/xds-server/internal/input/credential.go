package input

import (
	"fairlead.dev/services/xds-server/internal/credential"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// kindSecret is the kind of the objects that credentials come from.
const kindSecret = "Secret"

// Identity returns the verified SPIFFE URI of a workload that may have credentials, "" for all others. A result for
// which it was read is not shared between workloads.
func (r *Reader) Identity() string { return r.keyIn(WorkloadScope).Identity }

// Credential returns the credential of a name in a namespace, "" for that of the class's identity; nil if there is
// none. known is false while config-watcher has not answered yet: the engine follows the credential from the first
// build that reads it. A class without an identity has no credentials.
func (r *Reader) Credential(namespace, name string) (c *credential.Credential, known bool) {
	ref := credential.Ref{Identity: r.Identity(), Namespace: namespace, Name: name}
	if ref.Identity == "" {
		return nil, true
	}
	r.record(mesh.CredentialTopic(ref))
	if c, known = r.view.State().Credentials().Get(ref); c != nil {
		r.trace.credential(ref)
	}
	return c, known
}

// UsesCredential reports whether a DestinationRule without a workload selector that the client sees has the
// credentialName, which is given without its scheme.
func (r *Reader) UsesCredential(name string) bool {
	r.keyIn(NamespaceScope)
	r.record(mesh.CredentialUseTopics(r.client(), name)...)
	return r.view.State().UsesCredential(r.client(), name)
}

// SelectsCredential reports whether a DestinationRule of the client's namespace that selects the workload has the
// credentialName, which is given without its scheme.
func (r *Reader) SelectsCredential(name string) bool {
	r.record(mesh.SelectsCredentialTopic(r.client()))
	return r.view.State().SelectsCredential(r.client(), r.Labels(), name)
}
