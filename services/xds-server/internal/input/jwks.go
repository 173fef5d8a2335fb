package input

import (
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// Jwks returns the keys that config-watcher has fetched from a source. They have no bytes, and a problem, if there is
// no usable key; nil means that config-watcher has not told yet, which is to be treated alike.
func (r *Reader) Jwks(source contract.KeySource) *configv1.Jwks {
	r.record(mesh.JwksTopic(source))
	return r.view.State().Jwks(source)
}
