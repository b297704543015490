"""Made-up documents and replies for every subset of LongBench: pairs (document, replies) by task.

No text comes from a dataset. `length`, `dataset`, `language` and `_id` are columns of the hub's rows that no
prompt reads.
"""


def document(context, question, answers, classes=None):
    return {"question": question, "context": context, "answers": answers, "length": 9,
            "dataset": "made up", "language": "en", "all_classes": classes, "_id": "0"}


QA = [
    (document("The river Lun rises in the north. It is 40 km long, and \"very cold\".", "How long is it?",
              ["40 km", "about 40 kilometres, the guide says"]),
     ["40 km", " 40 km.", "The river is 40 km long.", "forty", "", "a an the", "About 40 kilometres!",
      "40 40 40 km km", "it's 40-km", "the guide says about the 40 km", "40\u00a0km\u3000long", "KM 40",
      "an  A\tthe THE 40", "caf\u00e9 40", "\u0130 40 km"]),
    (document("Nothing is said.", "Who?", ["unanswerable"]),
     ["unanswerable", "It is unanswerable.", "no", "the"]),
]
QA_ZH = [
    (document("王芳住在南京市，她喜欢在长江大桥上散步。", "她住在哪里？", ["南京市", "她住在南京市。"]),
     ["南京市", "南京", "她住在南京市，喜欢散步。", "王芳住在南京市长江大桥边。", "", "，。！", "Nanjing 南京市",
      "不知道", "她 住在 南京市", "在南京市的长江大桥上", "南京市南京市", "他来到了网易杭研大厦"]),
    (document("价格是3.5元。", "价格？", ["3.5元"]), ["3.5元", "三块五", "价格是3.5元。", "3.5 元", "Ａ3.5元"]),
]
SUMMARY = [
    (document("A long report.", "",
              ["The harbour was built in 1880. It burned down. The town rebuilt it in two years."]),
     ["The harbour was built in 1880. It burned down. The town rebuilt it in two years.",
      "The town built the harbour in 1880. Fire burned it down.", "It burned. It burned. It burned.",
      "harbour the was 1880 in built", "...", "", ".", " . ", "two years",
      "It cost 3.5 million. The town paid.",
      "the town\nrebuilt  it\tin two years", "nothing of this sort", "In two years the town rebuilt it"]),
    (document("Another one.", "What was decided?",
              ["The group will meet on Monday", "Monday was chosen. All agreed."]),
     ["The group chose Monday.", "All agreed. Monday was chosen.", "Monday",
      "meet Monday on will group The"]),
]
SUMMARY_ZH = [
    (document("会议记录。", "会议决定了什么？", ["会议决定下周一开始施工，由李明负责。预算为3.5万元.", "下周一施工"]),
     ["会议决定下周一开始施工，由李明负责。预算为3.5万元.", "李明负责下周一的施工。", "下周一施工", "预算", "",
      "会议没有决定。", "施工由李明负责，下周一开始，预算是3.5万元。", "The meeting decided. 下周一 施工"]),
]
TREC_CLASSES = ["Food", "Date", "Speed", "Description of a person", "Food plant", "Other location", "Other"]
CLASSES = [
    (document("Question: What do bees eat?\nType: Food", "Question: When was it?\nType:", ["Date"],
              TREC_CLASSES),
     ["Date", " Date", "date", "Date or Speed", "Food", "", "It is a Date, not a Speed.", "DateDate"]),
    # Parts of the right name are left out, but not each one.
    (document("Question: What grows?\nType: Food plant", "Question: Which?\nType:", ["Food plant"],
              TREC_CLASSES),
     ["Food plant", "Food", "plant", "Food plant, Other location", "Food plants and Food"]),
    (document("Question: Where?\nType: Other location", "Question: Where else?\nType:", ["Other location"],
              ["Other", "location", "Other location"]), ["Other location", "Other", "location"]),
]
CLASSES_ZH = [
    (document("新闻内容：球队获胜\n类别：体育", "新闻内容：股市上涨\n类别：", ["财经"], ["体育", "财经", "军事"]),
     ["财经", "财经新闻", "体育、财经", "股市", ""]),
]
COUNT = [
    (document("Paragraph 1: A. Paragraph 2: A.", "", ["7"]),
     ["7", " 7", "There are 7 of 9.", "7 7 8", "seven", "", "07", "7.0", "\u0667", "17"]),
]
RETRIEVAL = [
    (document("Paragraph 1: A.", "About B.", ["Paragraph 12"]),
     ["Paragraph 12", "12", "Paragraph 1", "Paragraph 12 or 13", "paragraph twelve", "", "12, 12", "112"]),
]
RETRIEVAL_ZH = [
    (document("段落1：甲。", "关于乙。", ["段落12"]), ["段落12", "12", "段落1", "段落12和段落3", "十二", "", "１２"]),
]
LONG_LINE = "".join(f"value_{i % 7} = table[{i}] + offset; " for i in range(8))
CODE = [
    (document("def f(x):\n    y = x + 1\n", "    z = 2\n", ["    return y"]),
     ["    return y", "return y", "\n\n    return y\n    pass", "    # done\n    return y",
      "```python\n    return y", "    // no\n    return y + 1", "", "# only", "    yield x",
      "    return y", " \t\n    return z", "nruter y   "]),
    (document("int main() {\n", "", ["    for (int i = 0; i < n; ++i) {"]),
     ["    for (int j = 0; j < n; j++) {", "  while (true) {", "for"]),
    # From 200 characters on, frequent characters begin no block.
    (document("x = 1\n", "", [LONG_LINE]),
     [LONG_LINE, LONG_LINE.replace("table", "list"), LONG_LINE[:90], LONG_LINE[::-1], "value = 1;",
      ";;;; ====", LONG_LINE.replace(" ", "  "), "offset; value_3 = table[9]"]),
]

LONGBENCH = {
    **{f"longbench_{name}": QA for name in (
        "2wikimqa", "2wikimqa_e", "hotpotqa", "hotpotqa_e", "multifieldqa_en", "multifieldqa_en_e", "musique",
        "narrativeqa", "qasper", "qasper_e", "triviaqa", "triviaqa_e")},
    "longbench_multifieldqa_zh": QA_ZH,
    **{f"longbench_{name}": SUMMARY for name in (
        "gov_report", "gov_report_e", "multi_news", "multi_news_e", "qmsum", "samsum", "samsum_e")},
    "longbench_dureader": SUMMARY_ZH, "longbench_vcsum": SUMMARY_ZH,
    "longbench_trec": CLASSES, "longbench_trec_e": CLASSES, "longbench_lsht": CLASSES_ZH,
    "longbench_passage_count": COUNT, "longbench_passage_count_e": COUNT,
    "longbench_passage_retrieval_en": RETRIEVAL, "longbench_passage_retrieval_en_e": RETRIEVAL,
    "longbench_passage_retrieval_zh": RETRIEVAL_ZH,
    "longbench_lcc": CODE, "longbench_lcc_e": CODE, "longbench_repobench-p": CODE,
    "longbench_repobench-p_e": CODE,
}
