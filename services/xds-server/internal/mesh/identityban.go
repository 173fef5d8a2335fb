package mesh

import (
	"slices"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// IdentityBans lists the identities that administrators have shut out of the mesh.
func (s *Snapshot) IdentityBans() (bans []*configv1.IdentityBan) {
	for _, e := range s.kinds[KindIdentityBan].list("") {
		bans = append(bans, e.value.(*configv1.IdentityBan))
	}
	return bans
}

// HasBans reports whether an IdentityBan is among what has changed.
func (c *Change) HasBans() bool {
	return slices.ContainsFunc(c.Keys, func(k Key) bool { return k.Kind == KindIdentityBan })
}
