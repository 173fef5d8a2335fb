package mesh

import configv1 "fairlead.dev/proto/fairlead/config/v1"

// KindIdentityBan is the kind that shuts an identity out of the mesh.
const KindIdentityBan = "IdentityBan"

// IdentityBans lists the identities that are shut out.
func (s *Snapshot) IdentityBans() []*configv1.IdentityBan {
	x, ok := s.kinds[KindIdentityBan]
	if !ok {
		return nil
	}
	var out []*configv1.IdentityBan
	x.m.Scan(func(_ string, e *entry) bool {
		if b, ok := e.value.(*configv1.IdentityBan); ok {
			out = append(out, b)
		}
		return true
	})
	return out
}

// HasBans reports whether a change is, among others, of an IdentityBan.
func (c *Change) HasBans() bool {
	for _, k := range c.Keys {
		if k.Kind == KindIdentityBan {
			return true
		}
	}
	return false
}
