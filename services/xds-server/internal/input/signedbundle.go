package input

import (
	cav1 "fairlead.dev/proto/fairlead/ca/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
)

// SignedBundle returns the trust bundle of the mesh as the ca has signed it, nil before there is one. It must not be
// changed.
func (r *Reader) SignedBundle() *cav1.SignedBundle {
	r.record(mesh.SignedBundleTopic())
	return r.view.State().SignedBundle()
}
