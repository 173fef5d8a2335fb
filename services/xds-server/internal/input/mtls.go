package input

import (
	"slices"
	"strconv"

	security "istio.io/api/security/v1beta1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// MTLSMode is what the class's inbound side accepts on a port.
type MTLSMode uint8

// Modes of PeerAuthentication.
const (
	// Permissive, the default, accepts mesh mTLS and plaintext.
	Permissive MTLSMode = iota
	// Strict accepts mesh mTLS only.
	Strict
	// Disable accepts plaintext only.
	Disable
)

// String returns the mode as PeerAuthentication spells it.
func (m MTLSMode) String() string {
	switch m {
	case Strict:
		return "STRICT"
	case Disable:
		return "DISABLE"
	default:
		return "PERMISSIVE"
	}
}

// AutoMTLS reports whether clients without a TLS setting for a service use mesh mTLS with those of its endpoints that
// accept it.
func (r *Reader) AutoMTLS(svc *configv1.Service) bool {
	on := r.Mesh().GetEnableAutoMtls()
	return (on == nil || on.GetValue()) && !svc.GetMeshExternal()
}

// InboundMTLS returns the mode on one of the workload's ports. The port-level mode of the workload's PeerAuthentication
// comes first, then that object's mode, then the namespace's, then the root namespace's. Of several objects at one
// level the oldest counts. UNSET inherits.
func (r *Reader) InboundMTLS(targetPort uint32) MTLSMode {
	topic := mesh.Topic{Subject: subjectInboundMTLS, A: strconv.FormatUint(uint64(targetPort), 10)}
	return derive(r, topic, func(r *Reader) MTLSMode { return r.inboundMTLS(targetPort) }, identical)
}

// PortsWithMTLS lists, sorted, the workload's ports for which its PeerAuthentication has a port-level mode.
func (r *Reader) PortsWithMTLS() []uint32 {
	selected, _ := r.peerAuthentications(r.Namespace(), r.Labels())
	if selected == nil {
		return nil
	}
	var out []uint32
	for port, own := range selected.Spec.GetPortLevelMtls() {
		if own.GetMode() != security.PeerAuthentication_MutualTLS_UNSET {
			out = append(out, port)
		}
	}
	slices.Sort(out)
	return out
}

func (r *Reader) inboundMTLS(port uint32) MTLSMode {
	return r.PeerMTLS(r.Namespace(), r.Labels(), port)
}

// PeerMTLS returns the mode that a workload of the namespace with these labels has on one of its ports. Clients use it
// to know what the workload accepts.
func (r *Reader) PeerMTLS(namespaceName string, labels map[string]string, port uint32) MTLSMode {
	root := r.Mesh().GetRootNamespace()
	mode := security.PeerAuthentication_MutualTLS_UNSET
	override := func(m *security.PeerAuthentication_MutualTLS) {
		if m.GetMode() != security.PeerAuthentication_MutualTLS_UNSET {
			mode = m.GetMode()
		}
	}
	workload, namespace := r.peerAuthentications(namespaceName, labels)
	if root != namespaceName {
		if _, mesh := r.peerAuthentications(root, nil); mesh != nil {
			override(mesh.Spec.GetMtls())
		}
	}
	if namespace != nil {
		override(namespace.Spec.GetMtls())
	}
	if workload != nil {
		override(workload.Spec.GetMtls())
		override(workload.Spec.GetPortLevelMtls()[port])
	}
	switch mode {
	case security.PeerAuthentication_MutualTLS_STRICT:
		return Strict
	case security.PeerAuthentication_MutualTLS_DISABLE:
		return Disable
	default:
		return Permissive
	}
}

// peerAuthentications returns the oldest object of the namespace that selects the labels, and the oldest without a
// selector.
func (r *Reader) peerAuthentications(namespace string, labels map[string]string) (selected, general *mesh.PeerAuthentication) {
	r.record(mesh.PeerAuthenticationsTopic(namespace))
	for _, pa := range r.view.State().PeerAuthentications(namespace) {
		selector := pa.Spec.GetSelector().GetMatchLabels()
		switch {
		case len(selector) == 0:
			if general == nil {
				general = pa
				traceOne(r.trace, pa)
			}
		case selected == nil && mesh.Matches(selector, labels):
			selected = pa
			traceOne(r.trace, pa)
		}
	}
	return selected, general
}
