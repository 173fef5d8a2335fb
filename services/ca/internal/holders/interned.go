package holders

// interned keeps each text once, and counts its uses.
type interned struct {
	ids   map[string]uint32
	texts []text
	free  []uint32
}

type text struct {
	text string
	uses int
}

func newInterned() interned { return interned{ids: map[string]uint32{}} }

// id returns the number of a text and counts a use.
func (in *interned) id(s string) uint32 {
	id, ok := in.ids[s]
	if !ok {
		id = uint32(len(in.texts))
		if n := len(in.free); n > 0 {
			id, in.free = in.free[n-1], in.free[:n-1]
		} else {
			in.texts = append(in.texts, text{})
		}
		in.texts[id].text = s
		in.ids[s] = id
	}
	in.texts[id].uses++
	return id
}

func (in *interned) text(id uint32) string { return in.texts[id].text }

// release ends a use.
func (in *interned) release(id uint32) {
	t := &in.texts[id]
	if t.uses--; t.uses > 0 {
		return
	}
	delete(in.ids, t.text)
	*t = text{}
	in.free = append(in.free, id)
}
