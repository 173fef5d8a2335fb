package inject

import (
	"text/template"
	"text/template/parse"
)

// pulse has a template write an empty text at the beginning of every round of a loop and of every template that is
// called, so that bounded, which counts what is written, ends one that would go on for too long.
func pulse(t *template.Template) {
	for _, one := range t.Templates() {
		if one.Tree != nil {
			pulseList(one.Root, true)
		}
	}
}

// pulseList adds to the loops of a list, and to the list itself if it is a loop's.
func pulseList(list *parse.ListNode, loop bool) {
	if list == nil {
		return
	}
	for _, node := range list.Nodes {
		switch n := node.(type) {
		case *parse.RangeNode:
			pulseList(n.List, true)
			pulseList(n.ElseList, false)
		case *parse.IfNode:
			pulseList(n.List, false)
			pulseList(n.ElseList, false)
		case *parse.WithNode:
			pulseList(n.List, false)
			pulseList(n.ElseList, false)
		}
	}
	if loop {
		list.Nodes = append([]parse.Node{&parse.TextNode{NodeType: parse.NodeText, Pos: list.Pos}}, list.Nodes...)
	}
}
