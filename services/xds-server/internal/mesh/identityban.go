package mesh

import configv1 "fairlead.dev/proto/fairlead/config/v1"

// IdentityBans lists the identities that administrators have shut out of the mesh.
func (s *Snapshot) IdentityBans() (bans []*configv1.IdentityBan) {
	for _, e := range s.kinds[KindIdentityBan].list("") {
		bans = append(bans, e.value.(*configv1.IdentityBan))
	}
	return bans
}
